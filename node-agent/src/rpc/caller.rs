//! Who calls: by the kernel's word on the Unix socket, by munge's over TCP, by a token or a certificate over TLS; and which roles that gives.

use nix::unistd::{Uid, User};
use slurm_serve_proto::v1;
use tokio::net::UnixStream;
use tokio::net::unix::UCred;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Status};

use crate::config::{Access, Principals};
use crate::serve::{by_uid, groups_of};

/// What somebody may do beyond what concerns his own jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Roles {
    /// Names, states, owners.
    pub read: bool,
    /// Models with their keys.
    pub proxy: bool,
    /// Everything.
    pub admin: bool,
}

impl Roles {
    /// Root's, where the kernel says that it is root.
    pub fn all() -> Self {
        Self {
            read: true,
            proxy: true,
            admin: true,
        }
    }

    /// Of whoever may use the models of others; he may list them too.
    pub fn proxy() -> Self {
        Self {
            read: true,
            proxy: true,
            admin: false,
        }
    }

    /// Those of the three that were `given` to somebody; each includes the ones before it.
    pub(super) fn graded(given: impl Fn(&str) -> bool) -> Self {
        match () {
            () if given("admin") => Self::all(),
            () if given("proxy") => Self::proxy(),
            () => Self {
                read: given("read"),
                ..Self::default()
            },
        }
    }

    /// Those that the configuration gives to somebody of whom `is_meant` knows whether he is.
    pub(super) fn by(access: &Access, is_meant: impl Fn(&Principals) -> bool) -> Self {
        Self::graded(|role| match role {
            "admin" => is_meant(&access.admin),
            "proxy" => is_meant(&access.proxy),
            _ => is_meant(&access.read),
        })
    }
}

/// How somebody reaches us; it decides how keys reach him.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// On this node: keys as they are.
    Socket,
    /// Over the network, which others may read: keys sealed for his uid.
    Munge,
    /// Encrypted: keys as they are.
    Tls,
}

/// Somebody who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// A user of the cluster; none over TLS, where tokens and certificates have roles of their own.
    pub uid: Option<u32>,
    /// On the Unix socket: his process.
    pub pid: Option<i32>,
    /// Roles.
    pub roles: Roles,
    /// By which way.
    pub via: Via,
}

impl Caller {
    /// Who sent `request`. UNAUTHENTICATED if that is not known.
    pub fn of<T>(request: &Request<T>) -> Result<Self, Status> {
        if let Some(caller) = request.extensions().get::<Caller>() {
            return Ok(*caller);
        }
        let peer = request
            .extensions()
            .get::<UdsConnectInfo>()
            .and_then(|info| info.peer_cred);
        let peer = peer.ok_or_else(|| Status::unauthenticated("the kernel does not say who calls"))?;
        Ok(Self::by_kernel(peer))
    }

    /// Who is at the other end of a Unix socket.
    pub fn on(stream: &UnixStream) -> std::io::Result<Self> {
        stream.peer_cred().map(Self::by_kernel)
    }

    fn by_kernel(peer: UCred) -> Self {
        let is_root = peer.uid() == 0;
        let roles = Roles {
            read: true,
            proxy: is_root,
            admin: is_root,
        };
        Self {
            uid: Some(peer.uid()),
            pid: peer.pid(),
            roles,
            via: Via::Socket,
        }
    }

    /// Only root, and only on this node.
    pub fn must_be_root(self) -> Result<(), Status> {
        if self.uid == Some(0) && self.via == Via::Socket {
            return Ok(());
        }
        Err(Status::permission_denied(format!(
            "only root on this node may call this, not {}",
            shown(self.uid)
        )))
    }

    /// The user of the cluster that he is.
    pub fn user(self) -> Result<u32, Status> {
        self.uid
            .ok_or_else(|| Status::permission_denied("only users of the cluster may call this"))
    }

    /// May he see everything of this model, its key included?
    pub fn owns(self, model: &v1::Model) -> bool {
        self.roles.admin || self.uid == Some(model.owner_uid)
    }
}

/// The roles that the configuration gives a uid.
pub async fn roles_of(uid: u32, access: &Access) -> Result<Roles, Status> {
    let user = by_uid(uid).await.map_err(Status::permission_denied)?;
    let needs_groups = [&access.read, &access.proxy, &access.admin]
        .iter()
        .any(|who| !who.groups.is_empty());
    let groups = match needs_groups {
        true => groups_of(user.clone()).await.map_err(Status::permission_denied)?,
        false => Vec::new(),
    };
    Ok(Roles::by(access, |who| is_one_of(&user, &groups, who)))
}

/// For messages.
pub(super) fn shown(uid: Option<u32>) -> String {
    uid.map_or_else(|| "a caller over TLS".to_owned(), |uid| format!("uid {uid}"))
}

fn is_one_of(user: &User, groups: &[String], who: &Principals) -> bool {
    // A name in the configuration is a name in the passwd database; root is root by its uid.
    let by_name = who
        .users
        .iter()
        .any(|name| name == "*" || *name == user.name || (name == "root" && user.uid == Uid::from_raw(0)));
    by_name || who.groups.iter().any(|group| groups.contains(group))
}
