"""What happens in a watched script, and who is told of it."""

from collections.abc import Callable, Sequence
from typing import Any

from .lines import line_of_call
from .patches import Patches


class Listener:
    """A listener of what happens in a watched script: it has a method for each of these events that it needs.

    A line is the ``file:line`` of the script's call. Nothing that a listener is given may be changed or kept alive.

        parameters_added(optimizer)     an optimizer has a further group of parameters
        schedule_made(schedule)         a learning-rate schedule of torch.optim was made
        forward_begins(module)          the first module since the last backward pass is called with gradients enabled
        inference(module)               a module that is part of no other one's call is called with gradients disabled
        loss(name, value, given, line)  a loss function of torch returned a value that has a gradient; given: arguments
        loss_scaled(scale)              a GradScaler multiplied what will be differentiated
        unscaled(optimizer)             a GradScaler is about to divide the gradients again
        precision_lowered()             torch.autocast begins
        pass_begins(roots)              a backward pass from these values begins
        gradient(parameter, gradient, first=None)
                                        a parameter's local gradient of the running pass, before any reduction and
                                        before it is added to .grad; first: whether it is the first of a sum over
                                        passes, None: it is, if .grad has none
        pass_ends(roots, line)          a backward pass has ended
        clipping(parameters)            gradients are about to be clipped
        clipped(parameters, norm, limit, line)
                                        gradients were clipped: their norm before (nan: by value), and the allowed one
        reducing(optimizer)             Horovod's optimizer waits for gradients, reduced since the backward pass
        step_begins(optimizer, line)    an optimizer's step begins, but none that it takes by other optimizers
        writes(optimizer, evaluated)    the gradient is what the step will take. It may be told again within a step,
                                        which then takes the last one, but for a closure (evaluated), whose first
                                        evaluation is at the parameters that the step begins with
        step_ends(optimizer)            the parameters have been updated
        iteration_begins(iterator)      a pass over a DataLoader begins
        examples(examples)              read by this process for the batch that follows, before they are collated
        reading(begins)                 examples are about to be read, or have been; loader workers tell it themselves
        batch_wanted(iterator)          a loader is asked for a batch
        batch(iterator, index, data)    a loader returns a batch; index: what its sampler gave for it, None if unknown
        iteration_ends(iterator)        a loader has no further batch
        mode(training)                  a module was put into training or evaluation mode
        batch_norm(examples)            batch-norm took statistics over this many examples, in training
        wrapped(broadcast_buffers, ranks)
                                        DistributedDataParallel wraps a model, for a process group of ``ranks``, and
                                        broadcasts its buffers before each forward pass or not
        combined(call)                  a collective is about to combine what the ranks have
        awaited(work)                   the end of a collective is about to be awaited
        combination_ends()              such a call has returned; a collective that is asynchronous may go on
        sharded(by)                     parameters are divided among the ranks, so that none has a whole gradient
        written(path)                   a file was opened for writing
        read(path)                      a file that is no code was opened for reading
        renamed(path, to)               a file or folder is about to get another name
        saving(path, state)             a checkpoint is about to be written; path: empty for a buffer in memory
        saved(path)                     it has been written
        loaded(path)                    a checkpoint has been read
        logged(values)                  numbers were given to a logger, by name
        instead(text)                   a sentence: what the script asks for and cannot have here, and what it had
        remark(text)                    a sentence: what was changed for the script to run, or cannot be followed
    """

    def ends_early(self, iterator: Any) -> bool:
        """Whether a loader is to end now, although it has further batches."""
        return False


class Watch:
    """The patches, and the listeners that are told; ``details``: whether every gradient and line is."""

    def __init__(self, listeners: Sequence[Listener], local_workers: int = 1, workers: int = 1, details: bool = True):
        self.listeners, self.local_workers, self.workers = tuple(listeners), local_workers, workers
        self.details = details
        self.line_of_call: Callable[[], str] = line_of_call if details else str
        self.patches = Patches()
        self._told: dict[str, list[Callable]] = {}          # by event, the methods

    def tell(self, event: str, *told: Any) -> None:
        """Call the method of that name of each listener that has one."""
        if event not in self._told:
            self._told[event] = [getattr(one, event) for one in self.listeners if hasattr(one, event)]
        for act in self._told[event]:
            act(*told)
