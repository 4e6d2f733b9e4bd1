"""What an operator does: looks for what is wrong with a machine, copies a scheduler, puts agents on machines."""
import getpass
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tarfile
import unittest

from programs import PROGRAMS, PoolTest, PoolWithInvitations, wait_until

SSHD = shutil.which("sshd") or shutil.which("/usr/sbin/sshd")


class Doctor(PoolTest):
    def findings(self, *arguments, code=0):
        done = self.run_program("modelet-agent", "doctor", "--json", "--insecure", "--scheduler", self.address, *arguments, code=code)
        return {finding["what"]: finding for finding in map(json.loads, done.stdout.splitlines())}

    def test_a_machine_that_is_well(self):
        found = self.findings("--work-dir", self.pool / "a", "--peer", "127.0.0.1")
        self.assertEqual({what for what, finding in found.items() if not finding["well"]}, set(), found)
        self.assertLessEqual({"version", "clock", "disk", "descriptors", "threads", "openat2", "scheduler", "ports", "peer 127.0.0.1"}, set(found))
        self.assertIn("has no keys", found["scheduler"]["found"])
        self.assertIn("ok    disk", self.modelet("doctor", "--insecure", "--scheduler", self.address).stdout)

    def test_each_fault_names_what_mends_it(self):
        found = self.findings("--work-dir", "/proc/none", "--data-address", "203.0.113.7", "--peer", "nowhere.invalid", code=1)
        for what, mend in (("disk", "--work-dir"), ("ports", "--data-address"), ("peer nowhere.invalid", "ping nowhere.invalid")):
            self.assertFalse(found[what]["well"], found[what])
            self.assertIn(mend, found[what]["mend"])
        self.scheduler.signal(signal.SIGTERM)
        self.assert_ends(self.scheduler, 0)
        found = self.findings("--work-dir", self.pool / "a", code=1)
        self.assertIn("systemctl status modelet-scheduler", found["scheduler"]["mend"])


class Backup(PoolWithInvitations):
    def test_a_copy_of_a_working_scheduler_goes_on_elsewhere(self):
        self.run_program(*self.join_arguments(self.invite(), "alpha"))
        *_, answer = self.verb("submit", self.experiment, "--nodes", "1", "--wait", key="alice").events()
        copy = self.pool / "copy"
        self.run_program("modelet-scheduler", "backup", "--config", self.config, copy)
        self.assertTrue(self.scheduler.running())
        self.assert_refused(2, "exists", "modelet-scheduler", "backup", "--config", self.config, copy)
        subprocess.run(["cp", "-a", self.state / "store", copy], check=True)
        self.scheduler.signal(signal.SIGKILL)
        self.scheduler.end()
        self.config.write_text(self.config.read_text().replace(f'"{self.state}"', f'"{copy}"').replace("tcp://127.0.0.1:*", self.address))
        self.start_scheduler()
        self.assertEqual([run["run"] for run in self.verb("list").events()], [answer["run"]])
        self.agent("alpha")  # its key is in the copy of the list
        def state():
            return self.verb("list").events()[0]["state"]
        wait_until(lambda: state() == "finished", lambda: f"the run finishes: {self.verb('list').stdout}")

    def test_a_copy_of_a_scheduler_that_does_not_work(self):
        self.scheduler.signal(signal.SIGTERM)
        self.assert_ends(self.scheduler, 0)
        self.run_program("modelet-scheduler", "backup", "--config", self.config, self.pool / "copy")
        self.assertTrue((self.pool / "copy/ledger.sqlite").exists())
        self.assert_refused(2, "has no ledger", "modelet-scheduler", "backup", "--state", self.pool, self.pool / "other")

    @unittest.skipUnless(os.geteuid() == 0, "only root copies what belongs to another user")
    def test_a_copy_that_root_makes_belongs_to_the_user_of_the_scheduler(self):
        self.invite()
        self.scheduler.signal(signal.SIGTERM)
        self.assert_ends(self.scheduler, 0)
        someone = 12345
        subprocess.run(["chown", "-R", f"{someone}:{someone}", self.state], check=True)
        copy = self.pool / "copy"
        self.run_program("modelet-scheduler", "backup", "--config", self.config, copy)
        made = {path.relative_to(copy).parts[0] if path != copy else "": path.stat() for path in (copy, *copy.rglob("*"))}
        self.assertLessEqual({"", "ledger.sqlite", "allowed", "invitations"}, set(made))
        self.assertEqual({(status.st_uid, status.st_gid) for status in made.values()}, {(someone, someone)})
        self.assertEqual(made[""].st_mode & 0o777, 0o700)
        self.assertEqual({path.stat().st_uid for path in self.state.rglob("*")}, {someone})  # the scheduler may still use its own


class Slurm(PoolWithInvitations):
    def test_the_job_is_submitted_and_shown(self):
        word = self.invite()
        bin_folder = self.pool / "bin"
        bin_folder.mkdir()
        for name in ("sbatch", "scancel"):
            (bin_folder / name).write_text(f'#!/bin/sh\necho "$@" > {self.pool}/{name}.arguments\ncat > {self.pool}/{name}.input\necho Submitted batch job 7\n')
            (bin_folder / name).chmod(0o755)
        environment, self.environment = self.environment, {**self.environment, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
        self.addCleanup(setattr, self, "environment", environment)
        launch = ("launch", "slurm", "-N", "8", "--invitation", word, "--folder", self.pool / "shared folder", "--partition", "spare",
                  "--sbatch=--time=7-0", "--agent=--cores=8")
        script = self.modelet(*launch, "--print").stdout
        self.assertIn("#SBATCH --array=0-7\n", script)
        self.assertIn("#SBATCH --time=7-0\n", script)
        self.assertIn("'--cores=8'", script)
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        self.assertIn("Submitted batch job 7", self.modelet(*launch).stdout)
        self.assertEqual((self.pool / "sbatch.input").read_text(), script)
        self.modelet("launch", "slurm", "--down")
        self.assertIn("--name modelet-agent", (self.pool / "scancel.arguments").read_text())
        self.assert_refused(2, "invitation", "modelet", "launch", "slurm", "-N", "8", "--invitation", "modelet1-x")


@unittest.skipUnless(SSHD, "sshd is not installed (Debian: openssh-server)")
class Ssh(PoolWithInvitations):
    def start_sshd(self, port_name):
        """An sshd of this user on a free port of the loopback. Returns the options of ssh for it."""
        folder = self.pool / port_name
        folder.mkdir(mode=0o700)
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
        shutil.copy(folder / "user.pub", folder / "authorized")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        pathlib.Path("/run/sshd").mkdir(exist_ok=True)
        daemon = subprocess.Popen([SSHD, "-D", "-e", "-f", "/dev/null", "-p", str(port), "-o", "ListenAddress=127.0.0.1", "-o", f"HostKey={folder / 'host'}",
                                   "-o", f"AuthorizedKeysFile={folder / 'authorized'}", "-o", "StrictModes=no", "-o", "PidFile=none", "-o", "UsePAM=no"],
                                  stdin=subprocess.DEVNULL, stderr=open(folder / "log", "wb"))
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.kill)
        wait_until(lambda: "Server listening" in (folder / "log").read_text(), "sshd listens")
        return ["-p", str(port), "-i", str(folder / "user"), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]

    def tarball(self, name):
        path = self.pool / name
        (self.pool / "note").write_text(path.name.partition(".")[0])
        fastest = {"w:xz": {"preset": 0}, "w:gz": {"compresslevel": 1}}
        mode = "w:" + path.suffix[1:]
        with tarfile.open(path, mode, **fastest[mode]) as archive:
            archive.add(PROGRAMS / "modelet-agent", "modelet/bin/modelet-agent")
            archive.add(self.pool / "note", "modelet/note")
        return path

    def launch(self, *arguments, code=0):
        return self.modelet("launch", "ssh", self.pool / "hosts.toml", *arguments, code=code).stdout

    def test_agents_on_three_machines_of_which_one_is_dead(self):
        hosts = {"alpha": self.start_sshd("alpha-sshd"), "beta": self.start_sshd("beta-sshd"), "dead": ["-p", "1"]}
        text = (f'tarball = "{self.tarball("first.tar.xz")}"\ninvitation = "{self.invite()}"\n'
                'agent_options = ["--cores=1", "--memory-mib=500", "--gflops=10", "--memory-gbps=5", "--dedicated", "--leave-seconds=5"]\n')
        for name, options in hosts.items():
            text += f'[[host]]\nname = "{name}"\naddress = "{getpass.getuser()}@127.0.0.1"\nssh_options = {json.dumps(options)}\n'
        # On one machine each host needs a folder of its own.
        folder_of = {name: self.pool / "on" / name for name in hosts}
        for name in hosts:
            folder_of[name].mkdir(parents=True)
        blocks = text.split("[[host]]")
        def launch_each(action, *more):
            outputs, codes = [], []
            for block, (name, _) in zip(blocks[1:], hosts.items()):
                (self.pool / "hosts.toml").write_text(f'folder = "{folder_of[name] / "modelet"}"\n' + blocks[0] + "[[host]]" + block)
                program = self.start("modelet", "launch", "ssh", self.pool / "hosts.toml", action, *more)
                codes.append(program.end())
                outputs.append(program.stdout)
            return codes, outputs
        def ended():
            for name in ("alpha", "beta"):
                pid = folder_of[name] / "modelet/agent.pid"
                if pid.exists():
                    try:
                        os.kill(int(pid.read_text()), signal.SIGKILL)
                    except ProcessLookupError:
                        pass
        self.addCleanup(ended)
        for _ in range(2):  # the second time nothing is left to do
            codes, outputs = launch_each("up")
            self.assertEqual(codes, [0, 0, 1], outputs)
            self.assertIn("not reached", outputs[2])
        wait_until(lambda: self.states() == {"alpha": "free", "beta": "free"}, lambda: f"both register: {self.nodes()}")
        pids = [(folder_of[name] / "modelet/agent.pid").read_text() for name in ("alpha", "beta")]
        self.assertIn("runs", launch_each("status")[1][0])
        blocks[0] = blocks[0].replace("first.tar.xz", self.tarball("second.tar.gz").name)
        self.assertIn("other programs", launch_each("up")[1][0])
        with tarfile.open(self.pool / "wrong.tar.gz", "w:gz") as archive:
            archive.add(PROGRAMS / "modelet-agent", "./modelet/bin/modelet-agent")
        right, blocks[0] = blocks[0], blocks[0].replace("second.tar.gz", "wrong.tar.gz")
        codes, outputs = launch_each("upgrade")
        self.assertEqual(codes, [1, 1, 1])
        self.assertIn("the tarball is not one of make-packages.sh", outputs[0])
        blocks[0] = right
        self.assertIn("runs", launch_each("status")[1][0])
        self.assertEqual(pids[0], (folder_of["alpha"] / "modelet/agent.pid").read_text())
        self.assertEqual(launch_each("upgrade")[0], [0, 0, 1])
        self.assertEqual((folder_of["alpha"] / "modelet/app/note").read_text(), "second")
        self.assertNotEqual(pids[0], (folder_of["alpha"] / "modelet/agent.pid").read_text())
        wait_until(lambda: self.states() == {"alpha": "free", "beta": "free"}, lambda: f"both are back: {self.nodes()}")
        self.assertEqual(launch_each("down", "--remove")[0], [0, 0, 1])
        self.assertFalse((folder_of["alpha"] / "modelet").exists())
        wait_until(lambda: not any(state == "free" for state in self.states().values()), lambda: f"both have left: {self.nodes()}")

    def test_wrong_files_of_hosts(self):
        for text, expected in (("", "[[host]]"), ("hosts = 1", "hosts"), ('[[host]]\nname = "a/b"\naddress = "x"', "a/b"),
                               ('[[host]]\naddress = "-oProxyCommand=x"', "name"), ('[[host]]\nname = "a"\naddress = "-oX"', "no address"),
                               ('invitation = "modelet1-x"\n[[host]]\naddress = "x"', "cut off")):
            (self.pool / "hosts.toml").write_text(text)
            program = self.start("modelet", "launch", "ssh", self.pool / "hosts.toml", "up")
            self.assertNotEqual(program.end(), 0)
            self.assertIn(expected, program.stderr + program.stdout)


if __name__ == "__main__":
    unittest.main()
