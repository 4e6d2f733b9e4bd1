"""Horovod's elastic driver, as `horovodrun --host-discovery-script` runs it, with workers that are started in the nodes of a cluster instead of
over ssh. For recovery.py, which runs it at the switch.

Standard input: first a line of JSON {"commands": {host: words that run its worker there}, "least": ranks that a run needs, "address": of this process};
then, whenever hosts come or go, a line with the names of those that there are, as JSON. Standard output: a line {"host", "process"} for each worker
that is started, and what workers print there. Ends when the training has ended, or with its input.
"""

import json
import os
import subprocess
import sys
import threading
import time

from horovod.runner.elastic.discovery import FixedHosts
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.rendezvous import create_rendezvous_handler
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
from horovod.runner.http.http_server import RendezvousServer

DEVICE = "eth0"  # of a node (cluster.py)


def run_worker(command, environment, events):
    """Runs a worker to its end. Returns (exit code, time), as the driver wants them."""
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    sys.stdout.write(json.dumps({"host": environment["HOROVOD_HOSTNAME"], "process": process.pid}) + "\n")  # in one write: workers share the pipe
    sys.stdout.flush()
    while True:
        try:
            return process.wait(0.02), time.time()
        except subprocess.TimeoutExpired:
            if any(event.is_set() for event in events):
                process.kill()


def main():
    job = json.loads(sys.stdin.readline())
    hosts = FixedHosts({host: 1 for host in job["commands"]})
    rendezvous = RendezvousServer()
    driver = ElasticDriver(rendezvous, hosts, job["least"], len(job["commands"]))
    port = rendezvous.start(create_rendezvous_handler(driver))
    common = {name: str(value) for name, value in create_run_env_vars(job["address"], [DEVICE], port, elastic=True).items()}

    def start(slot, events):
        return run_worker(job["commands"][slot.hostname], os.environ | common | create_slot_env_vars(slot), events)

    def follow_hosts():
        for line in sys.stdin:
            hosts.set({host: 1 for host in json.loads(line)})
        os._exit(0)  # threads of the driver may wait for workers, which the caller that closed the input has ended

    driver.start(len(job["commands"]), start)
    threading.Thread(target=follow_hosts, daemon=True).start()
    driver.get_results()
    driver.stop()


if __name__ == "__main__":
    main()
