"""A throw-away Slurm cluster on this machine: munged, slurmctld and a slurmd a node, all below one folder of /tmp.

    with MiniSlurm(nodes=2, cpus=2, environment=os.environ) as slurm:
        job = slurm.wait(slurm.sbatch("-N2", "train.sbatch"))
        job["JobState"], job["ExitCode"]

Layout "hosts": every slurmd has its own host name, pids, IPC, /dev/shm and /etc/hosts (root, or user namespaces).
Layout "net": each also has an address of its own, so that horovodrun knows them for several machines (root).
Layout "plain": all nodes share the host's (works for any user).
"""
import contextlib
import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PATH = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
NEEDED = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "sinfo", "scancel", "munged")
FINAL = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}
# of an outer job, or of a launcher
LEAKED = re.compile(r"(SLURM|SBATCH|SRUN|SALLOC|PMI|PMIX|OMPI|OPAL|PRTE|HOROVOD)_")

# No cgroups, no accounting, no fixed ports. TmpFS: one for each node, where PMIx keeps its sockets. ReturnToService=1:
# a node set down by hand stays down. cgroup/v1: slurmd loads such a plugin at any rate, and this one loads everywhere.
CONF = """\
ClusterName=mini
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/tmp/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
PlugStackConfig={folder}/plugstack.conf
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=50000,bf_interval=1
ReturnToService=1
SlurmctldTimeout=30
SlurmdTimeout=10
KillWait=2
MinJobAge=3600
SlurmdParameters=config_overrides
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def which(name):
    """The program's place, daemons in sbin too; None without one."""
    return shutil.which(name, path=PATH)


def missing():
    """Slurm's programs that are not here."""
    return [name for name in NEEDED if which(name) is None]


def _namespaces(*more):
    user = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    return ["unshare", *user, "--uts", "--ipc", "--mount", "--propagation", "private", "--pid", "--fork",
            "--kill-child", "--mount-proc", *more]


def possible(layout):
    """Whether this machine has what the layout, "hosts" or "net", takes."""
    test, more = "hostname x && mount -t tmpfs tmpfs /dev/shm && mount --bind /dev/null /etc/hosts", []
    if layout == "net":
        if os.geteuid() != 0 or which("ip") is None:
            return False
        test, more = test + " && ip link add b0 type bridge && ip link add v0 type veth peer name v1", ["--net"]
    try:
        return subprocess.run([*_namespaces(*more), "sh", "-c", test], capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):                 # containers often forbid it
        return False


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]


class MiniSlurm:
    """The cluster, up between enter and exit, with nodes n1, n2, ...

    layout      "hosts", "net" or "plain"; by default the first if it is possible, else the last
    settings    more lines for slurm.conf
    """

    def __init__(self, nodes, cpus, environment=os.environ, layout=None, settings=""):
        self.layout = layout or ("hosts" if possible("hosts") else "plain")
        self.names = [f"n{i + 1}" for i in range(nodes)]
        self._cpus, self._given, self._processes, self._settings = cpus, environment, {}, settings
        net = f"198.18.{os.getpid() % 250}."                     # a range for tests of networks
        self._address = net + "1" if self.layout == "net" else "127.0.0.1"
        self._addresses = {name: net + str(10 + i) if self.layout == "net" else self._address
                           for i, name in enumerate(self.names)}

    # ---- start and stop

    def __enter__(self):
        # not tmp_path: paths of sockets end at 108 characters, and munged wants folders that all may search
        self._folder = tempfile.mkdtemp(prefix="sl", dir="/tmp")
        os.chmod(self._folder, 0o755)
        for name in ["run", "log", "state", "home", *(f"{kind}/{n}" for kind in ("spool", "tmp") for n in self.names)]:
            os.makedirs(f"{self._folder}/{name}")
        self._configure()
        self.environment = self._environment()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception):
        if "slurmctld" in self._processes:
            with contextlib.suppress(Exception):
                self.cancel_all()
                self.run("scontrol", "shutdown", timeout=10)
        for name in sorted(self._processes, key="munged".__eq__):                 # munged last
            self._end(self._processes.pop(name))
        self._kill_leftovers()
        if self.layout == "net":                                 # with it go the nodes' ends
            subprocess.run([which("ip"), "link", "del", self._bridge], stderr=subprocess.DEVNULL)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _configure(self):
        host, ports = socket.gethostname().split(".")[0], free_ports(len(self.names) + 1)
        text = CONF.format(folder=self._folder, host=host, port=ports[0], user=getpass.getuser(),
                           address=self._address) + self._settings
        for name, port in zip(self.names, ports[1:]):
            text += (f"NodeName={name} NodeHostname={host if self.layout == 'plain' else name} "
                     f"NodeAddr={self._addresses[name]} Port={port} CPUs={self._cpus} RealMemory=4000 State=UNKNOWN\n")
        self._write("slurm.conf", text)
        self._write("plugstack.conf", "")
        self._write("cgroup.conf", "CgroupPlugin=cgroup/v1\n")
        self._write("hosts", f"127.0.0.1 localhost\n{self._address} {host}\n" + "".join(
            f"{address} {name}\n" for name, address in self._addresses.items()))
        with open(f"{self._folder}/munge.key", "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(os.urandom(128))

    def _write(self, name, text):
        with open(f"{self._folder}/{name}", "w") as file:
            file.write(text)

    def _environment(self):
        kept = {name: value for name, value in self._given.items() if not LEAKED.match(name)}
        kept.update(SLURM_CONF=f"{self._folder}/slurm.conf", HOME=f"{self._folder}/home",
                    PATH=f"{kept['PATH']}:/usr/sbin:/sbin", OMPI_ALLOW_RUN_AS_ROOT="1",
                    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        if self.layout != "net":
            kept["OMPI_MCA_btl_tcp_if_include"] = "lo"
        if self.layout == "plain":
            kept["OMPI_MCA_btl"] = "self,tcp"                    # two nodes of one host name would share their memory
        return kept

    def _start(self):
        folder = self._folder
        if self.layout == "net":
            self._bridge = f"sl{os.getpid() % 10**7}"
            self._ip(f"ip link add {self._bridge} type bridge; ip addr add {self._address}/24 dev {self._bridge}; "
                     f"ip link set {self._bridge} up")
        self._spawn("munged", "--foreground", f"--key-file={folder}/munge.key", f"--socket={folder}/run/munge.sock",
                    f"--pid-file={folder}/run/munged.pid", f"--log-file={folder}/log/munged.log",
                    f"--seed-file={folder}/run/munge.seed")
        self._until(lambda: os.path.exists(f"{folder}/run/munge.sock"), "munged")
        self._spawn("slurmctld", "-D", "-i", "-f", self.environment["SLURM_CONF"])
        self._until(lambda: " UP" in self.ask("scontrol", "ping", check=False), "slurmctld")
        for name in self.names:
            self.power_on(name)
        idle = dict.fromkeys(self.names, "idle")
        self._until(lambda: self.node_states() == idle, "idle nodes")

    def _own_cores(self, name):
        """taskset with the node's share of this machine's cores, as nodes share none.

        Linux groups threads by session, and each node is one: where two groups of spinning ranks wait for each other
        on one core, one of them can get no time for a minute and more (seen with Linux 6.18, sched_autogroup_enabled).
        """
        cores = sorted(os.sched_getaffinity(0))
        share = cores[self.names.index(name)::len(self.names)]
        return ["taskset", "-c", ",".join(map(str, share))] if share else []

    def _spawn_node(self, name, *options):
        own = self._own_cores(name)
        if self.layout == "plain":
            return self._spawn(*own, "slurmd", *options, name=name)
        wait = "until ip -4 addr show dev eth0 2>/dev/null | grep -q inet; do sleep .01; done; "
        net = self.layout == "net"
        setup = (f"{wait if net else ''}hostname {name} && mount -t tmpfs -o mode=1777 tmpfs /dev/shm && "
                 f"mount --bind {self._folder}/hosts /etc/hosts && {which('slurmd')} {' '.join(options)}")
        self._spawn(*own, *_namespaces(*["--net"] * net), "bash", "-c", setup, name=name)
        if net:
            self._plug_in(name)

    def _ip(self, commands):
        subprocess.run(["sh", "-ec", commands], check=True, env=self.environment)

    def _plug_in(self, name):
        """Give the node its address, on the bridge."""
        pid, end, own = self._processes[name].pid, f"{self._bridge}{name}", os.readlink("/proc/self/ns/net")
        self._until(lambda: os.readlink(f"/proc/{pid}/ns/net") != own, f"network of {name}")
        address = f"02:00:00:00:00:{self.names.index(name):02x}"       # after a restart too: others have noted it
        self._ip(f"ip link del {end} 2>/dev/null || true; "            # of a node that was powered off
                 f"ip link add {end} type veth peer name eth0 netns {pid} address {address}; "
                 f"ip link set {end} master {self._bridge} up; "
                 f"nsenter -t {pid} -n sh -ec 'ip link set lo up; ip addr add {self._addresses[name]}/24 dev eth0; "
                 "ip link set eth0 up'")

    def _spawn(self, program, *options, name=None):
        with open(f"{self._folder}/log/{name or program}.out", "ab") as out:
            self._processes[name or program] = subprocess.Popen(     # --pdeathsig: no orphans when pytest is killed
                ["setpriv", "--pdeathsig", "KILL", which(program), *options], stdin=subprocess.DEVNULL, stdout=out,
                stderr=out, env=self.environment, start_new_session=True, cwd=self._folder)

    @staticmethod
    def _end(process):
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _until(self, ready, what, limit=120):
        end = time.monotonic() + limit
        while not ready():
            dead = [name for name, process in self._processes.items() if process.poll() is not None]
            if dead or time.monotonic() > end:
                raise RuntimeError(f"no {what}; ended: {dead}\n{self.logs()}")
            time.sleep(0.1)

    def _kill_leftovers(self):
        """slurmstepd and its tasks outlive slurmd; they carry this cluster's SLURM_CONF in their environment."""
        ours = f"SLURM_CONF={self.environment['SLURM_CONF']}".encode()
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
                if pid != os.getpid() and ours in file.read().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)

    def logs(self, last=1500):
        """The end of each daemon's log."""
        ends = []
        for name in sorted(os.listdir(f"{self._folder}/log")):
            with open(f"{self._folder}/log/{name}", errors="replace") as file:
                ends.append(f"==> {name}\n{file.read()[-last:]}")
        return "\n".join(ends)

    # ---- nodes and jobs

    def power_off(self, name, tell=True):
        """Kill all that runs on a node; Slurm is told, or finds out after SlurmdTimeout; not in "plain"."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        if tell:
            self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=test")

    def power_on(self, name):
        """Start a node that is off."""
        self._spawn_node(name, "-D", "-N", name, "-f", self.environment["SLURM_CONF"])

    def cut_off(self, name):
        """Pull the node's network cable; in "net"."""
        self._ip(f"ip link set {self._bridge}{name} down")

    def join(self, name):
        """Plug the cable in again."""
        self._ip(f"ip link set {self._bridge}{name} up")

    def repair(self, limit=120):
        """End all jobs, and have all nodes idle again."""
        self.cancel_all(limit)
        idle = dict.fromkeys(self.names, "idle")

        def resumed():
            states = self.node_states()
            for name in [name for name in self.names if states.get(name, "").startswith(("down", "drain"))]:
                self.run("scontrol", "update", f"nodename={name}", "state=resume", check=False)
            return states == idle
        self._until(resumed, "idle nodes", limit)

    def run(self, *command, check=True, timeout=180, **options):
        """A finished command of this cluster, with its output as text."""
        done = subprocess.run([str(word) for word in command], env=self.environment, text=True, capture_output=True,
                              timeout=timeout, **options)
        if check and done.returncode:
            raise RuntimeError(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def ask(self, *command, tries=4, **options):
        """What a command that changes nothing prints; asked anew where the controller left one unanswered."""
        for _ in range(tries - 1):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.run(*command, timeout=15, **options).stdout
        return self.run(*command, **options).stdout

    def node_states(self):
        """The state of each node, by its name."""
        shown = self.ask("sinfo", "-h", "-N", "-o", "%N %T", check=False)
        return dict(line.split() for line in shown.splitlines())

    def sbatch(self, *words, **options):
        """Submit; gives the job's id."""
        return self.run("sbatch", "--parsable", *words, **options).stdout.strip().split(";")[0]

    def wait(self, job, limit=300):
        """The ended job as scontrol describes it, by field; raises TimeoutError."""
        end = time.monotonic() + limit
        while True:
            fields = self.described(job)
            if fields["JobState"] in FINAL:
                return fields
            if time.monotonic() > end:
                raise TimeoutError(f"job {job}: {fields['JobState']}, {fields['Reason']}\n{self.logs()}")
            time.sleep(0.2)

    def described(self, job):
        """The job as scontrol describes it, by field."""
        line = self.ask("scontrol", "-o", "show", "job", job)
        return dict(word.split("=", 1) for word in line.split() if "=" in word)

    def start_again(self, job, limit=150):
        """Start a job that is queued again, soon: it would wait two minutes."""
        self._until_shown(job, lambda line: "Reason=BeginTime" in line, "queued again", limit)
        # not now: what begins in the second in which it was queued again is refused
        self.run("scontrol", "update", f"jobid={job}", "starttime=now+2seconds")
        self._until_shown(job, lambda line: "JobState=PENDING" not in line, "started again", limit)

    def _until_shown(self, job, ready, what, limit):
        end = time.monotonic() + limit
        while not ready(self.ask("scontrol", "-o", "show", "job", job)):
            if time.monotonic() > end:
                raise TimeoutError(f"job {job} was not {what}\n{self.logs()}")
            time.sleep(0.2)

    def cancel_all(self, limit=60):
        """End all jobs and wait until none is left."""
        self.run("scancel", "-u", getpass.getuser(), check=False)
        end = time.monotonic() + limit
        while self.ask("squeue", "-h").strip() and time.monotonic() < end:
            time.sleep(0.2)
