//! What the application has said of the servers, in whichever way.

use std::time::Duration;

use super::target::{Address, Login, Nodes, SENTINEL, Target, Trust};
use crate::error::Error;

/// Where servers listen, unless told otherwise.
const REDIS: u16 = 6379;

#[derive(Clone)]
pub(super) enum Origin {
    Url(String),
    Sentinels {
        urls: Vec<String>,
        master: String,
    },
    Cluster(Vec<String>),
    #[cfg(feature = "bb8-redis")]
    Pool(super::target::Pool),
}

/// What stands above an address, whatever that says.
#[derive(Clone, Default)]
pub(super) struct Given {
    pub(super) login: Option<Login>,
    pub(super) database: Option<u32>,
    pub(super) trust: Trust,
    /// Of a pool: where its messages come from.
    #[cfg(feature = "bb8-redis")]
    pub(super) messages: Option<String>,
}

impl Origin {
    /// Where that leads, and the namespace it names.
    pub(super) fn target(
        self,
        given: Given,
        within: Duration,
    ) -> Result<(Target, Option<String>), Error> {
        let mut address = match self {
            Self::Url(url) => Address::parse(&url)?,
            Self::Sentinels { urls, master } => sentinels(&urls, master)?,
            Self::Cluster(urls) => cluster(&urls)?,
            #[cfg(feature = "bb8-redis")]
            Self::Pool(pool) => return Ok((of_pool(pool, &given, within)?, None)),
        };
        #[cfg(feature = "bb8-redis")]
        if given.messages.is_some() {
            return Err(Error::config("only a store from a pool is told where messages come from"));
        }
        address.login = given.login.unwrap_or(address.login);
        address.database = given.database.or(address.database);
        Ok((Target::new(&address, &given.trust, within)?, address.namespace))
    }
}

fn sentinels(urls: &[String], master: String) -> Result<Address, Error> {
    let nodes = urls.iter().map(|url| Address::node(url, SENTINEL));
    let nodes: Vec<_> = nodes.collect::<Result<_, _>>()?;
    let Some((_, tls, login)) = nodes.first().cloned() else {
        return Err(Error::config("a store needs at least one sentinel"));
    };
    if master.is_empty() {
        return Err(Error::config("sentinels are asked for a master by its name; it is empty"));
    }
    if nodes.iter().any(|(_, other_tls, other)| (*other_tls, other) != (tls, &login)) {
        return Err(Error::config("all sentinels have the same login, and all TLS or none"));
    }
    let nodes = nodes.into_iter().map(|(node, ..)| node).collect();
    Ok(Address {
        nodes: Nodes::Sentinels { nodes, master },
        tls,
        login: Login::default(),
        sentinel_login: login,
        database: None,
        namespace: None,
    })
}

fn cluster(urls: &[String]) -> Result<Address, Error> {
    let nodes = urls.iter().map(|url| Address::node(url, REDIS));
    let nodes: Vec<_> = nodes.collect::<Result<_, _>>()?;
    let Some((_, tls, login)) = nodes.first().cloned() else {
        return Err(Error::config("a store needs at least one node of its cluster"));
    };
    if nodes.iter().any(|(_, other_tls, other)| (*other_tls, other) != (tls, &login)) {
        return Err(Error::config("all nodes have the same login, and all TLS or none"));
    }
    Ok(Address {
        nodes: Nodes::Cluster(nodes.into_iter().map(|(node, ..)| node).collect()),
        tls,
        login,
        sentinel_login: Login::default(),
        database: None,
        namespace: None,
    })
}

#[cfg(feature = "bb8-redis")]
fn of_pool(pool: super::target::Pool, given: &Given, within: Duration) -> Result<Target, Error> {
    if given.login.is_some() || given.database.is_some() {
        return Err(Error::config("a pool has its own login and database"));
    }
    let messages = match &given.messages {
        Some(url) => Some(Target::new(&Address::parse(url)?, &given.trust, within)?),
        None => None,
    };
    if messages.as_ref().is_some_and(Target::is_apart) {
        return Err(Error::config("a pool is of one server, and so are its messages"));
    }
    Ok(Target::of_pool(pool, messages))
}
