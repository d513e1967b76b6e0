//! Addresses: what a URL says of the servers and how to log in.
//!
//! Read by hand, since a URL has one host and several nodes are several. A sentence about a bad one names
//! the part that is wrong and never its text, which may be a password.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use url::Host;

use crate::error::Error;

/// Where sentinels listen, unless told otherwise.
pub(in super::super) const SENTINEL: u16 = 26379;

/// Where a server listens.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(in super::super) struct Node {
    pub(in super::super) host: String,
    pub(in super::super) port: u16,
}

#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(in super::super) enum Nodes {
    One(Node),
    Socket(PathBuf),
    Sentinels { nodes: Vec<Node>, master: String },
    Cluster(Vec<Node>),
}

/// A name and a password. Servers before ACLs have a password alone.
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(in super::super) struct Login {
    pub(in super::super) user: Option<String>,
    pub(in super::super) password: Option<String>,
}

#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(in super::super) struct Address {
    pub(in super::super) nodes: Nodes,
    pub(in super::super) tls: bool,
    pub(in super::super) login: Login,
    /// How to log in to the sentinels themselves.
    pub(in super::super) sentinel_login: Login,
    pub(in super::super) database: Option<u32>,
    pub(in super::super) namespace: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    One,
    Socket,
    Sentinels,
    Cluster,
}

impl Kind {
    fn of(scheme: &str) -> Option<(Self, bool)> {
        let (base, way) = scheme.split_once('+').unwrap_or((scheme, ""));
        let tls = match base {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            "unix" if way.is_empty() => return Some((Self::Socket, false)),
            _ => return None,
        };
        let kind = match way {
            "" => Self::One,
            "unix" if !tls => Self::Socket,
            "sentinel" => Self::Sentinels,
            "cluster" => Self::Cluster,
            _ => return None,
        };
        Some((kind, tls))
    }

    fn port(self) -> u16 {
        if self == Self::Sentinels { SENTINEL } else { 6379 }
    }
}

impl Address {
    pub(in super::super) fn parse(url: &str) -> Result<Self, Error> {
        Self::read(url, None)
    }

    fn read(url: &str, port: Option<u16>) -> Result<Self, Error> {
        let unreadable = || wrong("can't be read; expected redis://host:port/db");
        let (scheme, rest) = url.split_once("://").ok_or_else(unreadable)?;
        let (kind, tls) = Kind::of(&scheme.to_ascii_lowercase()).ok_or_else(|| {
            wrong("begins with no scheme that is known: redis, rediss, valkey, valkeys, unix, redis+sentinel, redis+cluster")
        })?;
        if rest.contains('#') {
            return Err(wrong("can't have a #fragment; a # in a password is written %23"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut query = Query::read(query, kind)?;
        let (authority, path) = match kind {
            Kind::Socket => ("", rest),
            _ => rest.split_once('/').unwrap_or((rest, "")),
        };
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (read_login(login)?, hosts),
            None => (std::mem::take(&mut query.login), authority),
        };
        let (nodes, database) = match kind {
            Kind::Socket => (Nodes::Socket(read_socket(path)?), query.database.take()),
            _ => read_nodes(kind, hosts, path, port.unwrap_or(kind.port()))?,
        };
        Ok(Self {
            nodes,
            tls,
            login: login.checked()?,
            sentinel_login: query.sentinel.checked()?,
            database,
            namespace: query.namespace,
        })
    }

    /// The address of one node of several, which listens on `port` if it does not say; it says nothing but
    /// how to reach it.
    pub(in super::super) fn node(url: &str, port: u16) -> Result<(Node, bool, Login), Error> {
        let address = Self::read(url, Some(port))?;
        match address {
            Self { nodes: Nodes::One(node), database: None, namespace: None, .. } => {
                Ok((node, address.tls, address.login))
            }
            _ => Err(wrong("of a node is redis://[user:password@]host[:port] and no more")),
        }
    }
}

impl Login {
    pub(in super::super) fn checked(self) -> Result<Self, Error> {
        if self.user.is_some() && self.password.is_none() {
            return Err(Error::config("a user of the store needs a password"));
        }
        Ok(self)
    }
}

/// What stands behind the question mark.
#[derive(Default)]
struct Query {
    namespace: Option<String>,
    login: Login,
    sentinel: Login,
    database: Option<u32>,
}

impl Query {
    /// A name that is not known is refused: a misspelt `ns` would be another namespace.
    fn read(text: &str, kind: Kind) -> Result<Self, Error> {
        let mut query = Self::default();
        // Not as a form, in which a + is a blank: in a password it is what it is, here as before the host.
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = decoded(value)?;
            match (&*decoded(name)?, kind) {
                ("ns", _) => query.namespace = Some(value),
                ("sentinel_user", Kind::Sentinels) => query.sentinel.user = Some(value),
                ("sentinel_password", Kind::Sentinels) => query.sentinel.password = Some(value),
                ("user", Kind::Socket) => query.login.user = Some(value),
                ("pass", Kind::Socket) => query.login.password = Some(value),
                ("db", Kind::Socket) => query.database = Some(read_database(&value)?),
                // What redis-rs reads; lockgate decides on its own which it is.
                ("protocol", _) => {}
                _ => {
                    return Err(wrong(
                        "has a parameter that is not known here; there is ns, and for sentinels sentinel_user and sentinel_password",
                    ));
                }
            }
        }
        Ok(query)
    }
}

fn read_login(text: &str) -> Result<Login, Error> {
    let (user, password) = text.split_once(':').map_or((text, None), |(u, p)| (u, Some(p)));
    let user = (!user.is_empty()).then(|| decoded(user)).transpose()?;
    Ok(Login { user, password: password.map(decoded).transpose()? })
}

fn decoded(text: &str) -> Result<String, Error> {
    let text = percent_decode_str(text).decode_utf8();
    text.map(String::from).map_err(|_| wrong("is not UTF-8 where it is percent-encoded"))
}

fn read_socket(path: &str) -> Result<PathBuf, Error> {
    if !cfg!(unix) {
        return Err(wrong("names a unix socket, and this system has none"));
    }
    if !path.starts_with('/') || path.len() == 1 {
        return Err(wrong("needs the path of a socket: unix:///run/redis.sock"));
    }
    Ok(PathBuf::from(decoded(path)?))
}

fn read_nodes(
    kind: Kind,
    hosts: &str,
    path: &str,
    port: u16,
) -> Result<(Nodes, Option<u32>), Error> {
    let mut nodes = hosts.split(',').map(|host| read_node(host, port));
    let path = path.trim_end_matches('/');
    match kind {
        Kind::Sentinels => {
            let (master, database) = path.split_once('/').unwrap_or((path, ""));
            let master = decoded(master)?;
            if master.is_empty() {
                return Err(wrong(
                    "needs the master's name: redis+sentinel://host:port,host:port/mymaster",
                ));
            }
            let nodes = nodes.collect::<Result<_, _>>()?;
            Ok((Nodes::Sentinels { nodes, master }, some_database(database)?))
        }
        Kind::Cluster => match some_database(path)? {
            None | Some(0) => Ok((Nodes::Cluster(nodes.collect::<Result<_, _>>()?), None)),
            Some(_) => Err(Error::config("a cluster has no database but 0")),
        },
        Kind::One | Kind::Socket => match (nodes.next(), nodes.next()) {
            (Some(node), None) => Ok((Nodes::One(node?), some_database(path)?)),
            _ => Err(wrong("names several servers; that is redis+sentinel:// or redis+cluster://")),
        },
    }
}

fn some_database(text: &str) -> Result<Option<u32>, Error> {
    if text.is_empty() { Ok(None) } else { read_database(text).map(Some) }
}

fn read_database(text: &str) -> Result<u32, Error> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    number.ok_or_else(|| wrong("has a database that is no number: redis://host:port/2"))
}

fn read_node(text: &str, port: u16) -> Result<Node, Error> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, given)) if has_port(text) => {
            let given = given.parse().ok().filter(|port| *port > 0);
            (host, given.ok_or_else(|| wrong("has a port that is no number from 1 to 65535"))?)
        }
        _ => (text, port),
    };
    let host = match Host::parse(host) {
        Ok(Host::Domain(name)) => name,
        Ok(Host::Ipv4(ip)) if !ip.is_unspecified() => ip.to_string(),
        Ok(Host::Ipv6(ip)) if !ip.is_unspecified() => ip.to_string(),
        _ => return Err(wrong("names no host that can be reached")),
    };
    Ok(Node { host, port })
}

/// The last colon stands before a port, and not inside an IPv6 address.
fn has_port(host: &str) -> bool {
    host.rsplit(']').next().is_some_and(|after| after.contains(':'))
}

fn wrong(what: &str) -> Error {
    Error::config(format!("the store's URL {what}"))
}

#[cfg(test)]
mod tests;
