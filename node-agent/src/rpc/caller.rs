//! Who calls: by the kernel's word on the Unix socket, by munge's over TCP; and which roles that gives.

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
}

/// Somebody who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// By whom.
    pub uid: u32,
    /// On the Unix socket: his process.
    pub pid: Option<i32>,
    /// Roles.
    pub roles: Roles,
    /// Over TCP keys travel only sealed for this uid.
    pub is_remote: bool,
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
            uid: peer.uid(),
            pid: peer.pid(),
            roles,
            is_remote: false,
        }
    }

    /// Only root, and only on this node.
    pub fn must_be_root(self) -> Result<(), Status> {
        if self.uid == 0 && !self.is_remote {
            return Ok(());
        }
        Err(Status::permission_denied(format!(
            "only root on this node may call this, not uid {}",
            self.uid
        )))
    }

    /// May he see everything of this model, its key included?
    pub fn owns(self, model: &v1::Model) -> bool {
        self.roles.admin || self.uid == model.owner_uid
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
    let has = |who: &Principals| is_one_of(&user, &groups, who);
    let admin = has(&access.admin);
    let proxy = admin || has(&access.proxy);
    Ok(Roles {
        read: proxy || has(&access.read),
        proxy,
        admin,
    })
}

fn is_one_of(user: &User, groups: &[String], who: &Principals) -> bool {
    // A name in the configuration is a name in the passwd database; root is root by its uid.
    let by_name = who
        .users
        .iter()
        .any(|name| name == "*" || *name == user.name || (name == "root" && user.uid == Uid::from_raw(0)));
    by_name || who.groups.iter().any(|group| groups.contains(group))
}
