//! A running lab: coming up, finding its nodes.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::unistd::geteuid;

use crate::birth::{self, Bind, Birth, Root};
use crate::cache::{Cache, progress};
use crate::cgroup::Version;
use crate::command::account;
use crate::node::Node;
use crate::process::ProcessId;
use crate::spec::{LabSpec, Source};
use crate::state::{LabState, NodeState, Role, root_point};
use crate::{USERS, conf, daemons, down, network, rootfs, vllm};

/// A running lab. Unless it is to be kept, dropping it takes it down.
pub struct Lab {
    state: LabState,
    nodes: Vec<Node>,
    /// First processes born of this process; they have to be waited for after their end.
    inits: Mutex<Vec<Child>>,
    owned: bool,
}

impl Lab {
    /// Brings a lab up: everything runs, every compute node is idle. What isn't cached is made first, with progress
    /// on stderr. If a step fails, nothing stays.
    pub fn up(spec: LabSpec) -> Result<Self> {
        if !geteuid().is_root() {
            bail!("the lab needs root (it makes namespaces and mounts): run it as root");
        }
        spec.check()?;
        down::down_orphans()?;
        let cache = Cache::locate()?;
        let root = rootfs::ensure_root(&cache, spec.release)?;
        let vllm = if spec.vllm {
            Some(vllm::ensure_vllm(&cache, spec.release)?)
        } else {
            None
        };

        let mut state = LabState::create(spec.release, spec.keep)?;
        state.nodes = plan(&state.id, spec.nodes);
        let mut lab = Self {
            state,
            nodes: Vec::new(),
            inits: Mutex::default(),
            owned: true,
        };
        match lab.start(&spec, &root, vllm.as_deref()) {
            Ok(()) => {
                lab.state.complete = true;
                lab.state.save()?;
                lab.owned = !spec.keep;
                Ok(lab)
            }
            // The drop takes it down.
            Err(error) => Err(error.context(format!("the lab {} did not come up", lab.state.id))),
        }
    }

    /// A lab that another process brought up. It is kept when this is dropped.
    pub fn attach(id: &str) -> Result<Self> {
        let state = LabState::load(id)?;
        let hub = state
            .hub
            .with_context(|| format!("the lab {id} never came up: `lab down {id}`"))?;
        let nodes = state
            .nodes
            .iter()
            .map(|node| Node::new(node.clone(), hub))
            .collect::<Result<_>>()?;
        Ok(Self {
            state,
            nodes,
            inits: Mutex::default(),
            owned: false,
        })
    }

    /// Its id, which begins every node's name.
    pub fn id(&self) -> &str {
        &self.state.id
    }

    /// The node with this short name (`ctl`, `login`, `n1`) or host name.
    pub fn node(&self, name: &str) -> Result<&Node> {
        let found = self
            .nodes
            .iter()
            .find(|node| node.short() == name || node.name() == name);
        found.with_context(|| {
            let names = self.nodes.iter().map(Node::short).collect::<Vec<_>>().join(", ");
            format!("the lab {} has no node {name}; it has {names}", self.id())
        })
    }

    /// All nodes: controller, login node, compute nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node where slurmctld runs.
    pub fn controller(&self) -> &Node {
        &self.nodes[0]
    }

    /// The node where people submit.
    pub fn login(&self) -> &Node {
        &self.nodes[1]
    }

    /// The nodes where jobs run, `n1` first.
    pub fn compute(&self) -> &[Node] {
        &self.nodes[2..]
    }

    /// The compute nodes as Slurm's host list.
    pub fn compute_list(&self) -> String {
        conf::compute_nodes(self.id(), (self.nodes.len() - 2) as u16)
    }

    /// One line for people: what it is.
    pub fn description(&self) -> String {
        let names: Vec<_> = self.nodes.iter().map(Node::short).collect();
        let cgroups = match Version::of_this_machine() {
            Version::V1 => "v1",
            Version::V2 => "v2",
        };
        format!(
            "{} is up: Slurm {}, cgroup {cgroups}, nodes {}; enter it by `lab shell {0} NODE`",
            self.id(),
            self.state.release,
            names.join(" ")
        )
    }

    /// Takes it down now and says what could not be removed; a drop can only print that.
    pub fn down(mut self) -> Result<()> {
        self.owned = false;
        self.end()
    }

    fn end(&self) -> Result<()> {
        let reap = || {
            for node in &self.nodes {
                node.reap();
            }
            for mut init in self
                .inits
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .drain(..)
            {
                // It has been killed; there is nothing to learn from its status.
                let _ = init.wait();
            }
        };
        down::down_with(self.id(), reap)
    }

    fn start(&mut self, spec: &LabSpec, root: &Path, vllm: Option<&Path>) -> Result<()> {
        let folder = self.state.folder()?;
        fs::create_dir(root_point(&folder)).context("can't make the root's mount point")?;
        homes(&folder)?;
        let files = Files::new(spec, &self.state)?;

        let parts = Parts {
            spec,
            folder: &folder,
            root,
            vllm,
            files: &files,
        };
        let hub_name = format!("{}-hub", self.state.id);
        let (hub, born) = std::thread::scope(|scope| {
            let hub = scope.spawn(|| parts.hub(&hub_name));
            let born: Vec<_> = self
                .state
                .nodes
                .iter()
                .map(|node| scope.spawn(|| parts.node(node)))
                .collect();
            let born: Vec<_> = born.into_iter().map(joined).collect();
            (joined(hub), born)
        });
        // Whatever was born must be known before the first failure is looked at.
        let mut keep = |child: Result<Child>| -> Result<ProcessId> {
            let child = child?;
            let process = ProcessId::of(child.id() as i32).context("a first process ended at once");
            self.inits
                .get_mut()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .push(child);
            process
        };
        let hub = keep(hub).context("the hub");
        let born: Vec<_> = born.into_iter().map(&mut keep).collect();
        let hub = hub?;
        for (node, init) in self.state.nodes.iter_mut().zip(born) {
            node.init = Some(init.with_context(|| format!("the node {}", node.name))?);
        }
        self.state.hub = Some(hub);
        self.state.save()?;
        network::connect(hub, &self.state.nodes)?;
        self.nodes = self
            .state
            .nodes
            .iter()
            .map(|node| Node::new(node.clone(), hub))
            .collect::<Result<_>>()?;
        self.daemons(spec)
    }

    /// Starts what runs on each node, in parallel; slurmd only once slurmctld listens, because its next try to
    /// register would come seconds later.
    fn daemons(&self, spec: &LabSpec) -> Result<()> {
        each(&self.nodes, |node| {
            for step in &spec.prepare {
                step(node).with_context(|| format!("preparing {}", node.name()))?;
            }
            daemons::munged(node)?;
            if node.role() == Role::Controller {
                daemons::slurmctld(node)
            } else {
                Ok(())
            }
        })?;
        each(self.compute(), daemons::slurmd)?;
        daemons::nodes_up(self.controller(), &self.compute_list(), self.compute())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.owned
            && let Err(error) = self.end()
        {
            progress(&format!("{error:#}; `lab down {}` tries again", self.id()));
        }
    }
}

fn plan(id: &str, count: u16) -> Vec<NodeState> {
    let node = |short: String, role, number| NodeState {
        name: format!("{id}-{short}"),
        short,
        role,
        address: network::address(role, number),
        init: None,
    };
    let mut nodes = vec![
        node("ctl".into(), Role::Controller, 0),
        node("login".into(), Role::Login, 0),
    ];
    nodes.extend((1..=count).map(|number| node(format!("n{number}"), Role::Compute, number)));
    nodes
}

/// The shared /home.
fn homes(folder: &Path) -> Result<()> {
    for (name, uid) in USERS {
        let home = folder.join("home").join(name);
        fs::create_dir_all(&home)
            .and_then(|()| fs::set_permissions(&home, fs::Permissions::from_mode(0o750)))
            .and_then(|()| chown(&home, Some(uid), Some(uid)))
            .with_context(|| format!("can't make {}", home.display()))?;
    }
    Ok(())
}

/// What is written into every node.
struct Files {
    hosts: String,
    slurm_conf: String,
    gres_conf: String,
    cgroup_conf: String,
    munge_key: Vec<u8>,
}

impl Files {
    fn new(spec: &LabSpec, state: &LabState) -> Result<Self> {
        let mut munge_key = vec![0; 1024];
        fs::File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut munge_key))
            .context("can't read /dev/urandom")?;
        Ok(Self {
            hosts: conf::hosts(&state.nodes),
            slurm_conf: conf::slurm_conf(spec, &state.id, &state.nodes),
            gres_conf: conf::gres_conf(spec.gpus),
            cgroup_conf: conf::cgroup_conf(Version::of_this_machine()),
            munge_key,
        })
    }

    /// Writes them; `/` is the node's.
    fn write(&self, name: &str) -> Result<()> {
        for (path, text) in [
            ("/etc/hostname", format!("{name}\n").as_str()),
            ("/etc/hosts", &self.hosts),
            ("/etc/resolv.conf", ""),
            ("/etc/slurm/slurm.conf", &self.slurm_conf),
            ("/etc/slurm/gres.conf", &self.gres_conf),
            ("/etc/slurm/cgroup.conf", &self.cgroup_conf),
            (
                "/etc/slurm/plugstack.conf",
                "include /etc/slurm/plugstack.conf.d/*.conf\n",
            ),
        ] {
            birth::write(Path::new(path), text.as_bytes(), 0o644)?;
        }
        fs::create_dir_all("/etc/slurm/plugstack.conf.d").context("can't make plugstack.conf.d")?;
        // munged refuses a key or a socket folder that others own: by the uid inside.
        let munge = account("munge")?;
        birth::write(Path::new("/etc/munge/munge.key"), &self.munge_key, 0o400)?;
        fs::create_dir_all("/run/munge").context("can't make /run/munge")?;
        for path in ["/etc/munge/munge.key", "/run/munge"] {
            chown(path, Some(munge.uid), Some(munge.gid))
                .with_context(|| format!("can't give {path} to munge"))?;
        }
        Ok(())
    }
}

/// What the birth of every node needs.
struct Parts<'a> {
    spec: &'a LabSpec,
    folder: &'a Path,
    root: &'a Path,
    vllm: Option<&'a Path>,
    files: &'a Files,
}

impl Parts<'_> {
    fn hub(&self, name: &str) -> Result<Child> {
        self.birth(name, 0, Vec::new())?;
        first_process(self.folder)
    }

    fn node(&self, node: &NodeState) -> Result<Child> {
        let mine = self
            .spec
            .files
            .iter()
            .filter(|placed| placed.on.includes(node.role, &node.short));
        let (mut binds, mut written) = (Vec::new(), Vec::new());
        binds.push(Bind {
            from: self.folder.join("home"),
            to: "/home".into(),
            writable: true,
        });
        if let Some(folder) = self.vllm {
            binds.extend(vllm::binds(folder, false));
        }
        for placed in mine {
            match &placed.source {
                Source::Bound(from) => {
                    binds.push(Bind {
                        from: absolute(from)?,
                        to: placed.path.clone(),
                        writable: false,
                    });
                }
                Source::Bytes(bytes, mode) => written.push((&placed.path, bytes, *mode)),
            }
        }
        let gpus = if node.role == Role::Compute {
            self.spec.gpus
        } else {
            0
        };
        self.birth(&node.name, gpus, binds)?;
        self.files.write(&node.name)?;
        for (path, bytes, mode) in written {
            birth::write(path, bytes, mode)?;
        }
        first_process(self.folder)
    }

    fn birth(&self, host_name: &str, gpus: u16, binds: Vec<Bind>) -> Result<()> {
        let point = root_point(self.folder);
        Birth {
            root: Root::Overlay(self.root),
            point: &point,
            host_name,
            own_network: true,
            gpus,
            binds,
        }
        .enter()
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path).with_context(|| format!("{} is wanted in a node", path.display()))
}

/// Starts the first process of the namespaces that the calling thread made: `tini`, which takes in orphans and dies
/// of a signal from outside. Its environment names the lab, so that it is found even without a state file.
fn first_process(folder: &Path) -> Result<Child> {
    let script = "mount -t proc proc /proc
        echo up
        exec /usr/bin/setsid /usr/bin/tini -- sleep infinity </dev/null >/dev/null 2>&1";
    let mut child = Command::new("/bin/sh")
        .args(["-ec", script])
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env(down::MARK, folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("can't start the first process")?;
    // Both end when the script gives way to tini, or fails.
    let mut said = [String::new(), String::new()];
    if let (Some(out), Some(err)) = (&mut child.stdout, &mut child.stderr) {
        out.read_to_string(&mut said[0])
            .and_then(|_| err.read_to_string(&mut said[1]))
            .context("the first process")?;
    }
    (child.stdout, child.stderr) = (None, None);
    if said[0].trim() == "up" {
        return Ok(child);
    }
    let status = child.wait().context("the first process")?;
    Err(anyhow!(
        "the first process ended with {status}: {}",
        said[1].trim()
    ))
}

/// Does the same for each node at the same time; gives the first failure once all have ended.
fn each(nodes: &[Node], work: impl Fn(&Node) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = nodes.iter().map(|node| scope.spawn(|| work(node))).collect();
        threads
            .into_iter()
            .map(joined)
            .collect::<Vec<_>>()
            .into_iter()
            .collect()
    })
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// How long a killed lab's processes may take to be gone.
pub(crate) const END: Duration = Duration::from_secs(15);
