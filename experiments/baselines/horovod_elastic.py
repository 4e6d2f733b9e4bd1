"""A worker of elastic data-parallel training with Horovod; elastic_driver.py starts the workers.

Each rank prints a line of JSON for each completed step: {"event": "progress", "step", "time" (seconds since 1970), "rank", "ranks"}.
"""

import json
import sys
import time

import distributed
import horovod.torch as hvd
import horovod_train
import xmc
from common import np, torch


def parse_arguments():
    parser = distributed.options(__doc__, horovod_train.MODES)
    parser.add_argument("--commit-every", type=int, default=10, help="steps between copies of the state in memory (default: 10)")
    return parser.parse_args()


def tell(event):
    """Prints an event with a single write, because all ranks share a pipe."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def main():
    arguments = parse_arguments()
    hvd.init()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    x, y, features, labels = xmc.read(arguments.train, arguments.rows)
    order = np.random.default_rng(arguments.seed).permutation(len(x))
    x, y = x.permuted(order), y.permuted(order)
    family = horovod_train.Horovod(arguments, features, labels)
    optimizers = {f"optimizer_{i}": optimizer for i, optimizer in enumerate(family.optimizers)}
    state = hvd.elastic.TorchState(family.model, step=0, **optimizers)

    @hvd.elastic.run
    def train(state):
        family.rank, family.size = hvd.rank(), hvd.size()
        while state.step < arguments.steps:
            begin = state.step % (len(x) // arguments.batch) * arguments.batch
            family.step(x, y, begin, begin + arguments.batch, arguments.lr)
            state.step += 1
            tell({"event": "progress", "step": state.step, "time": time.time(), "rank": family.rank, "ranks": family.size})
            if state.step % arguments.commit_every == 0:
                state.commit()

    train(state)


if __name__ == "__main__":
    main()
