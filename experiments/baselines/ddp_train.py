"""A worker of data-parallel training with PyTorch's DistributedDataParallel over Gloo; launch.py starts the workers."""

import distributed
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel


class Ddp(distributed.DataParallel):
    def __init__(self, arguments, features, labels):
        options = distributed.MODES[arguments.mode]
        super().__init__(arguments, options, features, labels)
        self.name, self.rank, self.size = f"DistributedDataParallel of PyTorch {torch.__version__}", dist.get_rank(), dist.get_world_size()
        self.wrapped = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        if options.get("half"):
            self.wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)

    def step(self, x, y, begin, end, rate):
        distributed.common.set_rate(self.optimizers, rate)
        loss = self.backward(self.wrapped, x, y, begin, end)  # returns when the gradients of all ranks have arrived
        for optimizer in self.optimizers:
            optimizer.step()
        return loss, None

    def barrier(self):
        dist.barrier()


arguments = distributed.parse_arguments(__doc__, distributed.MODES)
dist.init_process_group("gloo")
distributed.run(arguments, lambda features, labels: Ddp(arguments, features, labels))
