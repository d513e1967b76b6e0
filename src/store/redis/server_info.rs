//! Properties that a server reports when a connection is made.
//!
//! One `INFO`. If the user may not call it, a warning is logged, nothing is refused, and servers of
//! which there may be several are told apart by address.

use std::{collections::HashMap, fmt};

use redis::RedisError;

use super::target::{ConnectError, Endpoint, RedisConnection};

/// Oldest version with all commands that the scripts need.
const MIN_VERSION: (u32, u32) = (6, 2);

/// First version with `WAITAOF`.
const WAITAOF_VERSION: (u32, u32) = (7, 2);

/// Returns true if the error is temporary: the connection broke, or the server is loading or busy
/// with a script.
fn is_transient(error: &RedisError) -> bool {
    error.is_io_error() || error.is_timeout() || matches!(error.code(), Some("BUSY" | "LOADING"))
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ServerInfo {
    /// `INFO` was refused; everything else is unknown.
    info_denied: bool,
    /// Changes with each start of the server.
    run_id: Option<String>,
    version: Option<(u32, u32)>,
    is_replica: bool,
    is_cluster: bool,
    /// `None` if memory is unbounded, or the policy is `noeviction`.
    eviction_policy: Option<String>,
    aof_enabled: Option<bool>,
}

impl ServerInfo {
    /// Calls `INFO`. Fails only if the server can't answer now. If it refuses the command or does
    /// not know it, the properties are unknown.
    pub(super) async fn fetch(connection: &mut RedisConnection) -> Result<Self, ConnectError> {
        match redis::cmd("INFO").query_async::<String>(connection).await {
            Ok(text) => Ok(Self::parse(&text)),
            Err(error) if is_transient(&error) => Err(ConnectError::from_redis(&error)),
            Err(_) => Ok(Self { info_denied: true, ..Self::default() }),
        }
    }

    /// Returns the id that tells this server from its predecessor: its run id, or else the address
    /// that it was found by, if any.
    pub(super) fn identity(&self, endpoint: Option<&Endpoint>) -> Option<String> {
        let address = || endpoint.map(|(host, port)| format!("{host}:{port}"));
        self.run_id.clone().or_else(address)
    }

    /// Returns the run id, which changes with each start, if it is reported.
    pub(super) fn run_id(&self) -> Option<&str> {
        self.run_id.as_deref()
    }

    fn parse(text: &str) -> Self {
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(field, _)| *field == name).map(|(_, value)| value.trim())
        };
        let is_bounded = field("maxmemory").is_some_and(|bytes| bytes != "0");
        let eviction =
            field("maxmemory_policy").filter(|policy| is_bounded && *policy != "noeviction");
        Self {
            info_denied: false,
            // Some services report zeros for all of their servers.
            run_id: field("run_id")
                .filter(|id| id.bytes().any(|byte| byte != b'0'))
                .map(str::to_owned),
            // Valkey reports its own version elsewhere, and this one for clients.
            version: field("redis_version").and_then(parse_version),
            is_replica: field("role") == Some("slave"),
            is_cluster: field("redis_mode") == Some("cluster"),
            eviction_policy: eviction.map(str::to_owned),
            aof_enabled: field("aof_enabled").map(|enabled| enabled == "1"),
        }
    }

    /// Fails if the server can't be a store, or a cluster node of one (`as_node`).
    pub(super) fn check_usable(&self, as_node: bool) -> Result<(), ConnectError> {
        if self.is_cluster && !as_node {
            let message = "the server is a cluster node; use redis+cluster://host:port,host:port";
            return Err(ConnectError::Config(message.to_owned()));
        }
        if let Some((major, minor)) = self.version.filter(|version| *version < MIN_VERSION) {
            return Err(ConnectError::Config(format!(
                "server version {major}.{minor} is too old; use Redis 6.2 or newer, or Valkey"
            )));
        }
        if self.is_replica {
            tracing::warn!("the server is a replica and is not used");
            return Err(ConnectError::Unavailable);
        }
        Ok(())
    }

    /// Returns true if the server can report writes that are on its disk and on those of its
    /// replicas. Without an append-only file it refuses `WAITAOF`.
    pub(super) fn supports_waitaof(&self) -> bool {
        self.aof_enabled == Some(true)
            && self.version.is_some_and(|version| version >= WAITAOF_VERSION)
    }

    /// Logs the concerns about this server for its operator. Called once per server.
    pub(super) async fn log_concerns(&self, connection: &mut RedisConnection) {
        for concern in self.concerns(connection).await {
            tracing::warn!("the server {concern}");
        }
    }

    pub(super) async fn concerns(&self, connection: &mut RedisConnection) -> Vec<ServerConcern> {
        if self.info_denied {
            return vec![ServerConcern::InfoDenied];
        }
        let persistence = match self.aof_enabled {
            Some(false) => match has_snapshots(connection).await {
                Some(has_snapshots) => (!has_snapshots).then_some(ServerConcern::NotPersistent),
                None => Some(ServerConcern::PersistenceUnknown),
            },
            _ => None,
        };
        let missing_run_id = self.run_id.is_none().then_some(ServerConcern::MissingRunId);
        let eviction = self.eviction_policy.clone().map(ServerConcern::EvictsKeys);
        eviction.into_iter().chain(persistence).chain(missing_run_id).collect()
    }
}

/// Reason why a usable server is not a good one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ServerConcern {
    /// Holds the eviction policy.
    EvictsKeys(String),
    NotPersistent,
    PersistenceUnknown,
    /// `INFO` has no `run_id`.
    MissingRunId,
    InfoDenied,
}

impl fmt::Display for ServerConcern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EvictsKeys(policy) => write!(
                f,
                "evicts keys ({policy}), so locks and deferred requests can vanish; set \
                 `maxmemory-policy noeviction`"
            ),
            Self::NotPersistent => f.write_str(
                "keeps nothing on disk, so deferred requests that were answered with 202 are lost \
                 when it stops; set `appendonly yes`",
            ),
            Self::PersistenceUnknown => f.write_str(
                "has no append-only file, and refuses `CONFIG GET save`, so deferred requests may \
                 be lost when it stops; set `appendonly yes`, or allow `+config|get`",
            ),
            Self::MissingRunId => f.write_str(
                "has no `run_id` in its `INFO`, so fences may go back after a failover to a \
                 replica that lacks the last grants and whose clock is behind",
            ),
            Self::InfoDenied => f.write_str(
                "refuses `INFO` to this user, so its version, role, eviction policy and \
                 persistence are not checked, and fences may go back after a failover to a \
                 replica that lacks the last grants and whose clock is behind; allow `+info`",
            ),
        }
    }
}

/// Parses a version such as `7.0.15`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Returns true if the server makes snapshots; `None` if it does not report it.
async fn has_snapshots(connection: &mut RedisConnection) -> Option<bool> {
    let mut command = redis::cmd("CONFIG");
    let settings =
        command.arg("GET").arg("save").query_async::<HashMap<String, String>>(connection);
    settings.await.ok()?.get("save").map(|schedule| !schedule.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPICAL_INFO: &str = "# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\n# Memory\r\nmaxmemory:0\r\n\
        maxmemory_policy:noeviction\r\naof_enabled:0\r\n# Replication\r\nrole:master\r\n";

    fn info_with(from: &str, to: &str) -> ServerInfo {
        assert!(TYPICAL_INFO.contains(from));
        ServerInfo::parse(&TYPICAL_INFO.replace(from, to))
    }

    #[test]
    fn typical_info_is_parsed_and_usable() {
        let info = ServerInfo::parse(TYPICAL_INFO);
        let expected = ServerInfo {
            run_id: Some("abc".to_owned()),
            version: Some((7, 0)),
            aof_enabled: Some(false),
            ..ServerInfo::default()
        };
        assert_eq!(info, expected);
        assert!(info.check_usable(false).is_ok());
        assert!(
            info_with("aof_enabled:0", "aof_enabled:1").aof_enabled.is_some_and(|appends| appends)
        );
    }

    #[test]
    fn run_id_of_zeros_is_ignored() {
        assert_eq!(info_with("run_id:abc", "run_id:a0").run_id(), Some("a0"));
        for nameless in ["run_id:0", "run_id:0000", "run_id:", "other:1"] {
            assert_eq!(info_with("run_id:abc", nameless).run_id(), None, "{nameless}");
        }
    }

    #[test]
    fn empty_info_is_usable() {
        assert!(ServerInfo::default().check_usable(false).is_ok());
        assert_eq!(
            ServerInfo::parse("").check_usable(false).is_ok(),
            ServerInfo::parse("odd\r\n:\r\n").check_usable(false).is_ok()
        );
    }

    #[test]
    fn cluster_node_is_usable_only_in_cluster_mode() {
        let node = info_with("run_id", "redis_mode:cluster\r\nrun_id");
        assert!(matches!(node.check_usable(false), Err(ConnectError::Config(_))));
        assert!(node.check_usable(true).is_ok());
    }

    #[test]
    fn version_below_6_2_is_config_error() {
        for (version, fits) in
            [("6.0.16", false), ("5.0.7", false), ("6.2.0", true), ("10.0.1", true), ("x", true)]
        {
            let checked = info_with("7.0.15", version).check_usable(false);
            assert_eq!(checked.is_ok(), fits, "{version}");
            assert!(!matches!(checked, Err(ConnectError::Unavailable)), "{version}");
        }
    }

    #[test]
    fn waitaof_needs_redis_7_2_and_append_only_file() {
        for (version, appends, waits) in
            [("7.0.15", 1, false), ("7.2.0", 1, true), ("8.1.0", 1, true), ("7.2.4", 0, false)]
        {
            let text = TYPICAL_INFO.replace("7.0.15", version);
            let text = text.replace("aof_enabled:0", &format!("aof_enabled:{appends}"));
            assert_eq!(ServerInfo::parse(&text).supports_waitaof(), waits, "{version} {appends}");
        }
        assert!(!ServerInfo::default().supports_waitaof());
    }

    #[test]
    fn replica_is_unavailable() {
        assert!(matches!(
            info_with("role:master", "role:slave").check_usable(false),
            Err(ConnectError::Unavailable)
        ));
    }

    #[test]
    fn eviction_policy_needs_maxmemory() {
        assert_eq!(info_with("noeviction", "allkeys-lru").eviction_policy, None);
        assert_eq!(info_with("maxmemory:0", "maxmemory:100").eviction_policy, None);
        let text =
            TYPICAL_INFO.replace("maxmemory:0", "maxmemory:100").replace("noevic", "allkeys-evic");
        assert_eq!(ServerInfo::parse(&text).eviction_policy.as_deref(), Some("allkeys-eviction"));
    }
}
