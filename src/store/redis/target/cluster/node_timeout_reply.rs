//! Replies of cluster nodes to `CONFIG GET cluster-node-timeout`: the time, or a refusal.

use std::{collections::HashMap, time::Duration};

use redis::Value;

/// Setting with the silence, in ms, after which nodes consider another node failed.
pub(super) const NODE_TIMEOUT_SETTING: &str = "cluster-node-timeout";

pub(super) fn parse_node_timeout(reply: Value) -> Option<Duration> {
    let settings: HashMap<String, String> = redis::from_redis_value(reply).ok()?;
    settings
        .get(NODE_TIMEOUT_SETTING)?
        .parse()
        .ok()
        .filter(|millis| *millis > 0)
        .map(Duration::from_millis)
}

/// Returns true if the node will never report its settings. A node that is busy or loading may do
/// so later.
pub(super) fn is_permanently_refused(reply: &Value) -> bool {
    let Value::ServerError(error) = reply else { return false };
    let is_unknown = |text: &str| {
        let text = text.to_ascii_lowercase();
        text.contains("unknown command") || text.contains("unknown subcommand")
    };
    error.code() == "NOPERM" || error.details().is_some_and(is_unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_reply(text: &str) -> Value {
        redis::parse_redis_value(text.as_bytes()).expect("an answer")
    }

    #[test]
    fn temporary_config_error_is_not_a_permanent_refusal() {
        for (text, refused) in [
            ("-NOPERM this user has no permissions to run the 'config|get' command\r\n", true),
            ("-ERR unknown command 'CONFIG', with args beginning with: 'GET' \r\n", true),
            ("-ERR unknown subcommand 'GET'. Try CONFIG HELP.\r\n", true),
            ("-ERR Unknown subcommand or wrong number of arguments for 'GET'.\r\n", true),
            ("-BUSY Redis is busy running a script.\r\n", false),
            ("-LOADING Redis is loading the dataset in memory\r\n", false),
            ("*0\r\n", false),
        ] {
            assert_eq!(is_permanently_refused(&parse_reply(text)), refused, "{text}");
            assert_eq!(parse_node_timeout(parse_reply(text)), None, "{text}");
        }
        let reply = parse_reply("*2\r\n$20\r\ncluster-node-timeout\r\n$4\r\n5000\r\n");
        assert!(!is_permanently_refused(&reply));
        assert_eq!(parse_node_timeout(reply), Some(Duration::from_secs(5)));
    }
}
