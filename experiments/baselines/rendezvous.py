"""Horovod's rendezvous server, as horovodrun starts it. It prints its port and serves until it is ended. Arguments: the names of the
hosts, one slot each."""

import signal
import sys

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer

server = RendezvousServer()
port = server.start()
server.init(get_host_assignments(parse_hosts(",".join(f"{name}:1" for name in sys.argv[1:])), len(sys.argv) - 1))
print(port, flush=True)
signal.pause()
