//! Servers and overrides as given by the application, in any of the supported forms.

use std::time::Duration;

use super::target::{
    ConnectionTarget, LoginCredentials, RedisTlsSettings, SENTINEL_PORT, ServerAddresses, StoreUrl,
};
use crate::error::Error;

/// Port of servers with none in their URL.
const DEFAULT_PORT: u16 = 6379;

#[derive(Clone)]
pub(super) enum ConnectionSource {
    Url(String),
    Sentinels {
        urls: Vec<String>,
        master: String,
    },
    Cluster(Vec<String>),
    #[cfg(feature = "bb8-redis")]
    Pool(super::target::ApplicationPool),
}

/// Settings that take precedence over those of the URL.
#[derive(Clone, Default)]
pub(super) struct ConnectionOverrides {
    pub(super) credentials: Option<LoginCredentials>,
    pub(super) database: Option<u32>,
    pub(super) tls: RedisTlsSettings,
    /// Only for a pool: URL of the servers that messages come from.
    #[cfg(feature = "bb8-redis")]
    pub(super) pubsub_url: Option<String>,
}

impl ConnectionSource {
    /// Returns the connection target, and the namespace of the URL.
    pub(super) fn into_target(
        self,
        overrides: ConnectionOverrides,
        deadline: Duration,
    ) -> Result<(ConnectionTarget, Option<String>), Error> {
        let mut address = match self {
            Self::Url(url) => StoreUrl::parse(&url)?,
            Self::Sentinels { urls, master } => sentinel_url(&urls, master)?,
            Self::Cluster(urls) => cluster_url(&urls)?,
            #[cfg(feature = "bb8-redis")]
            Self::Pool(pool) => return Ok((pool_target(pool, &overrides, deadline)?, None)),
        };
        #[cfg(feature = "bb8-redis")]
        if overrides.pubsub_url.is_some() {
            return Err(Error::config("only a store from a pool takes a source of its messages"));
        }
        address.credentials = overrides.credentials.unwrap_or(address.credentials);
        address.database = overrides.database.or(address.database);
        Ok((ConnectionTarget::new(&address, &overrides.tls, deadline)?, address.namespace))
    }
}

fn sentinel_url(urls: &[String], master: String) -> Result<StoreUrl, Error> {
    let nodes = urls.iter().map(|url| StoreUrl::parse_node(url, SENTINEL_PORT));
    let nodes: Vec<_> = nodes.collect::<Result<_, _>>()?;
    let Some((_, tls, login)) = nodes.first().cloned() else {
        return Err(Error::config("a store needs at least one sentinel"));
    };
    if master.is_empty() {
        return Err(Error::config("the name of the sentinels' master is empty"));
    }
    if nodes.iter().any(|(_, other_tls, other_login)| (*other_tls, other_login) != (tls, &login)) {
        return Err(Error::config(
            "all sentinels must have the same login, and all use TLS or none",
        ));
    }
    let nodes = nodes.into_iter().map(|(node, ..)| node).collect();
    Ok(StoreUrl {
        servers: ServerAddresses::Sentinels { nodes, master },
        tls,
        credentials: LoginCredentials::default(),
        sentinel_credentials: login,
        database: None,
        namespace: None,
    })
}

fn cluster_url(urls: &[String]) -> Result<StoreUrl, Error> {
    let nodes = urls.iter().map(|url| StoreUrl::parse_node(url, DEFAULT_PORT));
    let nodes: Vec<_> = nodes.collect::<Result<_, _>>()?;
    let Some((_, tls, login)) = nodes.first().cloned() else {
        return Err(Error::config("a store needs at least one cluster node"));
    };
    if nodes.iter().any(|(_, other_tls, other_login)| (*other_tls, other_login) != (tls, &login)) {
        return Err(Error::config("all nodes must have the same login, and all use TLS or none"));
    }
    Ok(StoreUrl {
        servers: ServerAddresses::Cluster(nodes.into_iter().map(|(node, ..)| node).collect()),
        tls,
        credentials: login,
        sentinel_credentials: LoginCredentials::default(),
        database: None,
        namespace: None,
    })
}

#[cfg(feature = "bb8-redis")]
fn pool_target(
    pool: super::target::ApplicationPool,
    overrides: &ConnectionOverrides,
    deadline: Duration,
) -> Result<ConnectionTarget, Error> {
    if overrides.credentials.is_some() || overrides.database.is_some() {
        return Err(Error::config(
            "a pool brings its own login and database; set them on the pool",
        ));
    }
    let pubsub_target = match &overrides.pubsub_url {
        Some(url) => Some(ConnectionTarget::new(&StoreUrl::parse(url)?, &overrides.tls, deadline)?),
        None => None,
    };
    if pubsub_target.as_ref().is_some_and(ConnectionTarget::is_clustered) {
        return Err(Error::config("a pool needs the URL of one server for its messages"));
    }
    Ok(ConnectionTarget::from_pool(pool, pubsub_target))
}
