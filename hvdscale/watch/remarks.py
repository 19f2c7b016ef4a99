"""Words of a record that its reader asks for, apart from what imports torch."""
ALONE = ("Horovod made a group of one for each worker, so they trained alone: start the doctor as the script is "
         "started, by horovodrun or mpirun")
JOINED = ("ranks that have ended an epoch join in (Join), and what the others then reduce is divided by the number of "
          "all ranks")
JOINED_BY_ACTIVE = ("ranks that have ended an epoch join in (Join), and what the others then reduce is divided by the "
                    "number of those that still train")
REDRAWN = ("checkpoint(..., preserve_rng_state=False) draws other random numbers, such as dropout masks, when it "
           "computes again in the backward pass, so the gradient is not that of the loss: leave the argument out")
NOT_FOLLOWED = ("the gradients of parameters that torch.autograd.grad returns ({}): only those of a backward pass, as "
                "loss.backward() makes it, are followed")
HOOK = "DistributedDataParallel has a communication hook"
OWN_HOOK = "parameters have hooks of the script's own (register_hook)"
IN_BACKWARD = "an optimizer steps within the backward pass"
PROCESSES = "the processes that the script starts itself"
TENSOR_PARALLEL = "parallelize_module"          # by which a model is divided
WITHOUT_REPEATS = "gather_for_metrics"          # it drops the examples that fill up the last batches
OWN = "own"                                     # the name under which the script's own generators are counted
