//! Parser of store URLs: servers, credentials, database, namespace.
//!
//! It is written by hand because a URL has one host, and Sentinel and cluster URLs list several
//! nodes. An error message names the invalid part but quotes nothing that may be a password.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use url::Host;

use crate::error::Error;

/// Default port of sentinels.
pub(in super::super) const SENTINEL_PORT: u16 = 26379;

/// Address of a server.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(in super::super) struct HostPort {
    pub(in super::super) host: String,
    pub(in super::super) port: u16,
}

#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(in super::super) enum ServerAddresses {
    Single(HostPort),
    UnixSocket(PathBuf),
    Sentinels { nodes: Vec<HostPort>, master: String },
    Cluster(Vec<HostPort>),
}

/// User name and password. Servers without ACLs have only a password.
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(in super::super) struct LoginCredentials {
    pub(in super::super) user: Option<String>,
    pub(in super::super) password: Option<String>,
}

#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(in super::super) struct StoreUrl {
    pub(in super::super) servers: ServerAddresses,
    pub(in super::super) tls: bool,
    pub(in super::super) credentials: LoginCredentials,
    /// Credentials for the sentinels themselves.
    pub(in super::super) sentinel_credentials: LoginCredentials,
    pub(in super::super) database: Option<u32>,
    pub(in super::super) namespace: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UrlScheme {
    Single,
    UnixSocket,
    Sentinels,
    Cluster,
}

impl UrlScheme {
    fn parse(scheme: &str) -> Option<(Self, bool)> {
        let (base, suffix) = scheme.split_once('+').unwrap_or((scheme, ""));
        let tls = match base {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            "unix" if suffix.is_empty() => return Some((Self::UnixSocket, false)),
            _ => return None,
        };
        let kind = match suffix {
            "" => Self::Single,
            "unix" if !tls => Self::UnixSocket,
            "sentinel" => Self::Sentinels,
            "cluster" => Self::Cluster,
            _ => return None,
        };
        Some((kind, tls))
    }

    fn default_port(self) -> u16 {
        if self == Self::Sentinels { SENTINEL_PORT } else { 6379 }
    }
}

impl StoreUrl {
    pub(in super::super) fn parse(url: &str) -> Result<Self, Error> {
        Self::parse_with_port(url, None)
    }

    fn parse_with_port(url: &str, default_port: Option<u16>) -> Result<Self, Error> {
        let parse_error = || {
            url_error(
                "cannot be parsed; expected redis://host:port/db, or for a store in memory Store::memory()",
            )
        };
        let (scheme, location) = url.split_once("://").ok_or_else(parse_error)?;
        let (kind, tls) = UrlScheme::parse(&scheme.to_ascii_lowercase()).ok_or_else(|| {
            url_error("has an unknown scheme; use redis, rediss, valkey, valkeys, unix, redis+sentinel or redis+cluster")
        })?;
        if location.contains('#') {
            return Err(url_error("cannot have a #fragment; write a # in a password as %23"));
        }
        let (location, query) = location.split_once('?').unwrap_or((location, ""));
        let mut query = UrlQuery::parse(query, kind)?;
        let (authority, path) = match kind {
            UrlScheme::UnixSocket => ("", location),
            _ => location.split_once('/').unwrap_or((location, "")),
        };
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (parse_credentials(login)?, hosts),
            None => (std::mem::take(&mut query.credentials), authority),
        };
        let (nodes, database) = match kind {
            UrlScheme::UnixSocket => {
                (ServerAddresses::UnixSocket(parse_socket_path(path)?), query.database.take())
            }
            _ => parse_servers(kind, hosts, path, default_port.unwrap_or(kind.default_port()))?,
        };
        Ok(Self {
            servers: nodes,
            tls,
            credentials: login.validated()?,
            sentinel_credentials: query.sentinel_credentials.validated()?,
            database,
            namespace: query.namespace,
        })
    }

    /// Parses the URL of one node of several. The port defaults to `default_port`, and the URL must
    /// contain nothing but address and credentials.
    pub(in super::super) fn parse_node(
        url: &str,
        default_port: u16,
    ) -> Result<(HostPort, bool, LoginCredentials), Error> {
        let address = Self::parse_with_port(url, Some(default_port))?;
        match address {
            Self {
                servers: ServerAddresses::Single(node),
                database: None,
                namespace: None,
                ..
            } => Ok((node, address.tls, address.credentials)),
            _ => Err(url_error(
                "of a node is redis://[user:password@]host[:port] without other parts",
            )),
        }
    }
}

impl LoginCredentials {
    pub(in super::super) fn validated(self) -> Result<Self, Error> {
        if self.user.is_some() && self.password.is_none() {
            return Err(Error::config("a user of the store needs a password"));
        }
        Ok(self)
    }
}

/// Query parameters of a URL.
#[derive(Default)]
struct UrlQuery {
    namespace: Option<String>,
    credentials: LoginCredentials,
    sentinel_credentials: LoginCredentials,
    database: Option<u32>,
}

impl UrlQuery {
    /// Parses the query. Unknown names are refused: a misspelt `ns` would select another namespace.
    fn parse(text: &str, kind: UrlScheme) -> Result<Self, Error> {
        let mut query = Self::default();
        // Not parsed as a form, where `+` means a space: a `+` in a password stays, as in the part
        // before the host.
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = percent_decode(value)?;
            match (&*percent_decode(name)?, kind) {
                ("ns", _) => query.namespace = Some(value),
                ("sentinel_user", UrlScheme::Sentinels) => {
                    query.sentinel_credentials.user = Some(value);
                }
                ("sentinel_password", UrlScheme::Sentinels) => {
                    query.sentinel_credentials.password = Some(value);
                }
                ("user", UrlScheme::UnixSocket) => query.credentials.user = Some(value),
                ("pass", UrlScheme::UnixSocket) => query.credentials.password = Some(value),
                ("db", UrlScheme::UnixSocket) => query.database = Some(parse_database(&value)?),
                // Parameter of redis-rs; ignored, since lockgate chooses the protocol itself.
                ("protocol", _) => {}
                _ => return Err(unknown_parameter_error(text, name, kind)),
            }
        }
        Ok(query)
    }
}

/// Returns the error for a parameter that this kind of URL does not take. It quotes the name,
/// unless that may be a part of a password whose `?` or `&` is not escaped.
fn unknown_parameter_error(query: &str, name: &str, kind: UrlScheme) -> Error {
    let is_plain_name = name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let may_be_secret = !is_plain_name || query.contains('@') || query.contains("pass");
    let quoted = if may_be_secret { String::new() } else { format!(" {name:?}") };
    let accepted = match kind {
        UrlScheme::Sentinels => "ns, sentinel_user and sentinel_password",
        UrlScheme::UnixSocket => "ns, db, user and pass",
        UrlScheme::Single | UrlScheme::Cluster => "ns; other settings belong to Store::builder",
    };
    url_error(&format!("has an unknown parameter{quoted}; it takes {accepted}"))
}

fn parse_credentials(text: &str) -> Result<LoginCredentials, Error> {
    let (user, password) = text.split_once(':').map_or((text, None), |(u, p)| (u, Some(p)));
    let user = (!user.is_empty()).then(|| percent_decode(user)).transpose()?;
    Ok(LoginCredentials { user, password: password.map(percent_decode).transpose()? })
}

fn percent_decode(text: &str) -> Result<String, Error> {
    let text = percent_decode_str(text).decode_utf8();
    text.map(String::from).map_err(|_| url_error("has percent-encoded text that is not UTF-8"))
}

fn parse_socket_path(path: &str) -> Result<PathBuf, Error> {
    if !cfg!(unix) {
        return Err(url_error("names a unix socket, which this system does not support"));
    }
    if !path.starts_with('/') || path.len() == 1 {
        return Err(url_error("needs the path of a socket: unix:///run/redis.sock"));
    }
    Ok(PathBuf::from(percent_decode(path)?))
}

fn parse_servers(
    kind: UrlScheme,
    hosts: &str,
    path: &str,
    default_port: u16,
) -> Result<(ServerAddresses, Option<u32>), Error> {
    let mut nodes = hosts.split(',').map(|host| parse_host_port(host, default_port));
    let path = path.trim_end_matches('/');
    match kind {
        UrlScheme::Sentinels => {
            let (master, database) = path.split_once('/').unwrap_or((path, ""));
            let master = percent_decode(master)?;
            if master.is_empty() {
                return Err(url_error(
                    "needs the master's name: redis+sentinel://host:port,host:port/mymaster",
                ));
            }
            let nodes = nodes.collect::<Result<_, _>>()?;
            Ok((ServerAddresses::Sentinels { nodes, master }, parse_optional_database(database)?))
        }
        UrlScheme::Cluster => match parse_optional_database(path)? {
            None | Some(0) => {
                Ok((ServerAddresses::Cluster(nodes.collect::<Result<_, _>>()?), None))
            }
            Some(_) => Err(Error::config("a cluster has database 0 only")),
        },
        UrlScheme::Single | UrlScheme::UnixSocket => match (nodes.next(), nodes.next()) {
            (Some(node), None) => {
                Ok((ServerAddresses::Single(node?), parse_optional_database(path)?))
            }
            _ => Err(url_error("names several servers; use redis+sentinel:// or redis+cluster://")),
        },
    }
}

fn parse_optional_database(text: &str) -> Result<Option<u32>, Error> {
    if text.is_empty() { Ok(None) } else { parse_database(text).map(Some) }
}

fn parse_database(text: &str) -> Result<u32, Error> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    number.ok_or_else(|| {
        url_error("has a database that is not a number; expected redis://host:port/2")
    })
}

fn parse_host_port(text: &str, default_port: u16) -> Result<HostPort, Error> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port_text)) if has_port(text) => {
            let port = port_text.parse().ok().filter(|port| *port > 0);
            let invalid = || url_error("has a port that is not a number from 1 to 65535");
            (host, port.ok_or_else(invalid)?)
        }
        _ => (text, default_port),
    };
    let host = match Host::parse(host) {
        Ok(Host::Domain(name)) => name,
        Ok(Host::Ipv4(ip)) if !ip.is_unspecified() => ip.to_string(),
        Ok(Host::Ipv6(ip)) if !ip.is_unspecified() => ip.to_string(),
        _ => return Err(url_error("has no valid host")),
    };
    Ok(HostPort { host, port })
}

/// Returns true if the last colon precedes a port and is no part of an IPv6 address.
fn has_port(host: &str) -> bool {
    host.rsplit(']').next().is_some_and(|after| after.contains(':'))
}

fn url_error(problem: &str) -> Error {
    Error::config(format!("the store's URL {problem}"))
}

#[cfg(test)]
mod tests;
