"""Replicas of a model that take steps apart and are synchronized: local SGD, DiLoCo and MuLoCo.

Each of M replicas starts a round at the weights w, takes ``sync_every`` inner steps with its own optimizer, each on its
share of a global batch, and comes to w_m. The synchronization is an outer SGD step on the mean of their changes,

    d = 1/M sum_m (w - w_m),    v <- mu v + d,    w <- w - eta (d + mu v),

from whose w all continue, each with its optimizer's state (DiLoCo: Douillard et al. 2023, arXiv:2311.08105, algorithm
1, with Nesterov momentum in torch's form; with Muon as inner optimizer MuLoCo: Therien et al. 2025, arXiv:2505.23725,
algorithm 1). With eta = 1 and mu = 0, w is the replicas' mean (local SGD: Stich 2018, arXiv:1805.09767, algorithm 1).

Which examples a replica has depends on its number alone, so the updates are the same at any number of workers: each has
some of the replicas, or some of them one replica, whose gradients they sum. Buffers take the mean of the replicas'
changes. Where these are compressed (see ``Sender``), each replica sends its own once, and all workers add them up in
the replicas' order. Averages of weights take in those after each synchronization.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..errors import FaultError, PlanError
from ..modules.running_statistics import Buffers
from ..plan.local_steps import FULL, exchange_rank
from ..plan.plan import Plan, Problem
from ..workers.group import WorkerLostError, Workers
from ..workload import Split, Workload
from .model import make_model
from .optimizers import SGD, WeightAverage, fusible, has_modes, make_optimizer, put_back
from .step import VOTES, DataParallelStep, StepResult, measured_of


def outer_optimizer(problem: Problem, model: nn.Module, inner: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer that moves the model: the inner one, or with replicas that of the synchronizations."""
    if problem.local_steps is None:
        return inner
    if has_modes(inner):
        raise PlanError(f"optimizer = {problem.optimizer} evaluates other weights than it trains, which does not go "
                        "with sync_every; choose another optimizer")
    parameters, momentum = trained(model), problem.local_steps["outer_momentum"]
    sgd = SGD if fusible(parameters) else torch.optim.SGD
    return sgd([{"params": parameters}], problem.local_steps["outer_lr"], momentum, nesterov=momentum > 0)


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def moving(model: nn.Module) -> list[Tensor]:
    """What training changes: parameters, and buffers but for counters."""
    return [*trained(model), *(buffer for buffer in Buffers(model).values() if buffer.is_floating_point())]


def load_mean(model: nn.Module, replicas: Sequence[Mapping[str, Tensor]]) -> None:
    """Load the mean of the replicas' state dicts into the model that has the weights at the start of their round."""
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            value -= sum(value - replica[name].to(value.device) for replica in replicas) / len(replicas)
        else:
            value.copy_(replicas[0][name])


class Sender:
    """Compresses the changes of one replica, tensors like ``weights``: rounded to bf16 (rank 0), or of each matrix a
    product of two thin ones. With M a tensor as a matrix of the first and its other dimensions, and Q as of the
    synchronization before,

        P = orthogonalize(M Q),    Q <- M^T P,    what is received: P Q^T

    (PowerSGD: Vogels et al. 2019, arXiv:1905.13727, algorithm 1, of one replica's M), where that is fewer numbers; all
    else is sent as it is. What is not sent is added to the replica's next change (error feedback, algorithm 2).
    """

    def __init__(self, weights: Sequence[Tensor], rank: int):
        self.kind = weights[0].dtype if rank else torch.bfloat16
        self.shapes: list[list[torch.Size]] = []        # of the factors that are sent of a tensor, or its own alone
        for shape in (weight.shape for weight in weights):
            rows, columns = (shape[0], shape[1:].numel()) if len(shape) > 1 else (0, 0)
            fewer = 0 < rank * (rows + columns) < rows * columns
            self.shapes.append([torch.Size((rows, rank)), torch.Size((columns, rank))] if fewer else [shape])
        self.size = sum(shape.numel() for shapes in self.shapes for shape in shapes)       # numbers that are sent
        drawn = torch.Generator(weights[0].device).manual_seed(0)
        self.unsent = [torch.zeros_like(weight) for weight in weights]
        self.bases = [weight.new_empty(shapes[1]).normal_(generator=drawn)
                      for weight, shapes in zip(weights, self.shapes) if shapes[1:]]

    def send(self, changes: Sequence[Tensor]) -> Tensor:
        """The numbers to send of these changes, and of what was not sent before."""
        whole, parts, bases = torch._foreach_add(changes, self.unsent), list[Tensor](), iter(self.bases)
        for change, shapes in zip(whole, self.shapes):
            if shapes[1:]:
                matrix, basis = change.flatten(1), next(bases)
                parts += [torch.linalg.qr(matrix @ basis).Q, basis]
                torch.matmul(matrix.T, parts[-2], out=basis)
            else:
                parts.append(change)
        sent = torch.cat([part.flatten() for part in parts]).to(self.kind)
        self.unsent = torch._foreach_sub(whole, self.receive(sent))
        return sent

    def receive(self, sent: Tensor) -> list[Tensor]:
        """The changes that some replica's numbers stand for."""
        parts, found = iter(sent.split([one.numel() for shapes in self.shapes for one in shapes])), []
        for shapes, like in zip(self.shapes, self.unsent):
            own, *basis = (next(parts).view(shape).to(like.dtype) for shape in shapes)
            found.append((own @ basis[0].T if basis else own).view_as(like))
        return found


class LocalSteps:
    """Takes the plan's steps with the replicas of this worker; used as a DataParallelStep is. Its model has the weights
    at the start of the round, and its optimizer is the outer one; each call is a collective."""

    def __init__(self, plan: Plan, workload: Workload, train: Split, model: nn.Module, optimizer: torch.optim.Optimizer,
                 workers: Workers, device: torch.device, average: WeightAverage | None = None):
        self.plan, self.model, self.optimizer, self.average = plan, model, optimizer, average
        self.workers, self.device = workers, device
        group, first = workers.divide(plan.workers_each), workers.rank * plan.replicas // workers.size
        self.replicas: dict[int, DataParallelStep] = {}
        for number in range(first, first + max(1, plan.replicas // workers.size)):
            copy = make_model(workload, plan, device)
            copy.load_state_dict(model.state_dict())
            self.replicas[number] = DataParallelStep(plan, workload, train, copy, make_optimizer(plan, copy), group,
                                                     device, replica=number)
        self._spoken_for = self.replicas if group.rank == 0 else {}         # by the first of a replica's workers
        rank = exchange_rank(plan.local_steps.get("exchange", FULL))
        self.senders = {} if rank is None else {number: Sender(moving(model), rank) for number in self.replicas}

    def __call__(self, step: int, lr: float, votes: set[str]) -> StepResult:
        """Take an inner step of every replica, and synchronize them if one is due; raises as DataParallelStep does."""
        started = time.perf_counter()
        results, fault = self._each(lambda replica: replica(step, lr, set()))
        computed = time.perf_counter()
        data = sum(result.measured["data_seconds"] for result in results)
        inside = sum(result.measured.get("communication_seconds", 0.0) for result in results)
        losses, agreed, by_rank = self._agree(results, votes | ({"fault"} if fault else set()),
                                              [data, computed - started - data - inside])
        if "fault" in agreed:
            self.workers.raise_together(f"step {step}", fault)
        count = sum(counted for _, counted in losses)
        loss = sum(mean * counted for mean, counted in losses) / count
        busy = results[0].measured["without_core_seconds"] / results[0].step_seconds
        measured = {"data_seconds": data, "without_core_seconds": busy * (computed - started)}
        if math.isfinite(loss) and (step + 1) % self.plan.local_steps["sync_every"] == 0:
            measured |= self._synchronize(step + 1)
        ended = time.perf_counter()
        if self.device.type == "cpu":
            measured |= {"compute_seconds": computed - started - data - inside,
                         "communication_seconds": ended - computed + inside}
        return StepResult(loss, agreed, ended - started, measured | measured_of(self.plan, step, count), by_rank, count)

    def warm_up(self, passes: int) -> None:
        _, fault = self._each(lambda replica: replica.warm_up(passes))
        self.workers.raise_together("the first step", fault)

    @contextlib.contextmanager
    @torch.no_grad()
    def evaluated(self) -> Iterator[None]:
        """A context in which the model has the mean of the replicas; a collective."""
        with put_back([*trained(self.model), *Buffers(self.model).values()]):
            self.finish()
            yield

    @torch.no_grad()
    def finish(self) -> None:
        """Leave the mean of the replicas in the model; a collective."""
        torch._foreach_sub_(moving(self.model), self._mean_changes())
        self._copy_counters()

    def close(self) -> None:
        for replica in self.replicas.values():
            replica.close()

    def state(self) -> dict:
        """The state without the model's and the optimizer's, of this worker's replicas by number."""
        replicas = {number: {"model": replica.model.state_dict(), "optimizer": replica.optimizer.state_dict()}
                    for number, replica in self.replicas.items()}
        for number, sender in self.senders.items():
            replicas[number] |= {"unsent": sender.unsent, "bases": sender.bases}
        return {"replicas": replicas, **({"average": self.average.state()} if self.average else {})}

    def restore(self, state: dict) -> None:
        for number, replica in self.replicas.items():
            replica.model.load_state_dict(state["replicas"][number]["model"])
            replica.optimizer.load_state_dict(state["replicas"][number]["optimizer"])
        for number, sender in self.senders.items():
            for name in ("unsent", "bases"):
                torch._foreach_copy_(getattr(sender, name), state["replicas"][number][name])
        if self.average:
            self.average.restore(state["average"])

    def _each(self, act: Callable[[DataParallelStep], object]) -> tuple[list, Exception | None]:
        """What ``act`` returns of each of this worker's replicas, and an error that all ranks have to raise."""
        try:
            return [act(replica) for replica in self.replicas.values()], None
        except (WorkerLostError, FaultError):
            raise
        except (Exception, SystemExit) as error:
            return [], error

    def _agree(self, results: Sequence[StepResult], votes: set[str], seconds: Sequence[float]
               ) -> tuple[list[list[float]], tuple[str, ...], list[float]]:
        """Loss and count of every replica, the votes, and the seconds by rank; nothing is added up but votes."""
        workers, replicas = self.workers, self.plan.replicas
        table = torch.zeros(2 * replicas + len(VOTES) + 2 * workers.size, dtype=torch.float64)
        losses, cast, by_rank = table.split((2 * replicas, len(VOTES), 2 * workers.size))
        for number, result in zip(self._spoken_for, results):
            losses[2 * number:2 * number + 2] = torch.tensor([result.loss, result.count], dtype=torch.float64)
        cast.copy_(torch.tensor([float(vote in votes) for vote in VOTES]))
        by_rank[workers.rank::workers.size] = torch.tensor(seconds, dtype=torch.float64)
        workers.sum_(table, "replicas/step")
        agreed = tuple(vote for vote, ranks in zip(VOTES, cast.tolist()) if ranks)
        return losses.view(-1, 2).tolist(), agreed, by_rank.tolist()

    @torch.no_grad()
    def _synchronize(self, done: int) -> dict[str, float]:
        """Take the outer step after ``done`` steps; returns the row's values by column."""
        parameters = trained(self.model)
        changes = self._mean_sent() if self.senders else self._mean_changes()
        measured = {"replica_distance": self._root_mean_square(lambda number: torch._foreach_sub(torch._foreach_sub(
            parameters, trained(self.replicas[number].model)), changes[:len(parameters)]))}
        if self.senders:
            measured["exchange_error"] = self._root_mean_square(
                lambda number: self.senders[number].unsent[:len(parameters)])
        before = [parameter.clone() for parameter in parameters]
        for parameter, change in zip(parameters, changes):
            parameter.grad = change
        self.optimizer.step()
        for buffer, change in zip(moving(self.model)[len(parameters):], changes[len(parameters):]):
            buffer -= change
        self._copy_counters()
        for replica in self.replicas.values():
            torch._foreach_copy_(moving(replica.model), moving(self.model))
        if self.average:
            seen = self.plan.stream.examples_before
            self.average.update(done - 1, seen(done) - seen(done - self.plan.local_steps["sync_every"]))
        return {**measured, "outer_step": math.sqrt(_sqnorm(torch._foreach_sub(parameters, before)))}

    def _mean_changes(self) -> list[Tensor]:
        """The mean over the replicas of what each has subtracted from the model's weights; a collective."""
        weights = moving(self.model)
        total = torch.zeros(sum(weight.numel() for weight in weights), dtype=weights[0].dtype, device=self.device)
        for replica in self._spoken_for.values():
            total += torch.cat([change.flatten() for change in torch._foreach_sub(weights, moving(replica.model))])
        self.workers.sum_(total, "replicas/changes").div_(self.plan.replicas)
        return [change.view_as(weight) for change, weight in zip(total.split([w.numel() for w in weights]), weights)]

    def _mean_sent(self) -> list[Tensor]:
        """The mean, added up in their order, of the changes that each replica's numbers stand for; a collective."""
        weights, any_sender = moving(self.model), next(iter(self.senders.values()))
        total, replicas = [torch.zeros_like(weight) for weight in weights], self.plan.replicas
        for number in range(replicas):
            sent = torch.empty(any_sender.size, dtype=any_sender.kind, device=self.device)
            if number in self._spoken_for:
                sent = self.senders[number].send(torch._foreach_sub(weights, moving(self.replicas[number].model)))
            self.workers.broadcast_(sent.view(torch.uint8), "replicas/sent", number * self.workers.size // replicas)
            torch._foreach_add_(total, any_sender.receive(sent))
        return torch._foreach_div(total, replicas)

    def _copy_counters(self) -> None:
        """Take the buffers that are no floating-point numbers, which are the same in all replicas."""
        any_replica = next(iter(self.replicas.values())).model
        for buffer, value in zip(Buffers(self.model).values(), Buffers(any_replica).values()):
            if not buffer.is_floating_point():
                buffer.copy_(value)

    def _root_mean_square(self, of: Callable[[int], Sequence[Tensor]]) -> float:
        """The root mean square over the replicas, by number, of the norm of these tensors; a collective."""
        squares = torch.zeros(self.plan.replicas, dtype=torch.float64)
        for number in self._spoken_for:
            squares[number] = _sqnorm(of(number))
        self.workers.sum_(squares, "replicas/squares")
        return math.sqrt(squares.mean().item())


def _sqnorm(tensors: Sequence[Tensor]) -> float:
    return sum(torch.linalg.vector_norm(tensor, dtype=torch.float64).item() ** 2 for tensor in tensors)
