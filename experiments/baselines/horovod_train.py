"""A worker of data-parallel training with Horovod over Gloo; launch.py starts the workers."""

import time

import distributed
import horovod
import horovod.torch as hvd

MODES = distributed.MODES | {
    "sparse-fp16": {"sparse_input": True, "half": True},
    "sparse-as-dense": {"sparse_input": True, "sparse_as_dense": True},
}


class Horovod(distributed.DataParallel):
    def __init__(self, arguments, features, labels):
        options = MODES[arguments.mode]
        super().__init__(arguments, options, features, labels)
        self.name, self.rank, self.size = f"Horovod {horovod.__version__}", hvd.rank(), hvd.size()
        groups = [group for group in (self.sparse, self.dense) if group]
        self.optimizers = [self._distributed(optimizer, group, options) for optimizer, group in zip(self.optimizers, groups)]

    def _distributed(self, optimizer, group, options):
        half = options.get("half") and group is self.dense  # Horovod 0.28.1 cannot decompress a gathered gradient
        return hvd.DistributedOptimizer(optimizer, [(self.names[parameter], parameter) for parameter in group],
                                        compression=hvd.Compression.fp16 if half else hvd.Compression.none,
                                        sparse_as_dense=options.get("sparse_as_dense", False))

    def step(self, x, y, begin, end, rate):
        distributed.common.set_rate(self.optimizers, rate)
        loss = self.backward(self.model, x, y, begin, end)  # all-reduces begin while it runs
        computed = time.perf_counter()
        for optimizer in self.optimizers:
            optimizer.synchronize()
        waited = time.perf_counter() - computed
        for optimizer in self.optimizers:
            with optimizer.skip_synchronize():
                optimizer.step()
        return loss, waited

    def barrier(self):
        hvd.barrier()


def main():
    arguments = distributed.parse_arguments(__doc__, MODES)
    hvd.init()
    distributed.run(arguments, lambda features, labels: Horovod(arguments, features, labels))


if __name__ == "__main__":
    main()
