//! Counts of commands and scripts that a server reports.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

/// A server that stands still tells nothing.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Calls of scripts since this server began, each of which begins by its hash; what a connection asks as it is made does not.
/// None if it does not say.
pub(crate) fn script_calls(port: u16) -> Option<u64> {
    let mut server = TcpStream::connect(("127.0.0.1", port)).ok()?;
    server.set_read_timeout(Some(READ_TIMEOUT)).ok()?;
    server.write_all(b"INFO commandstats\r\nQUIT\r\n").ok()?;
    let mut text = String::new();
    server.read_to_string(&mut text).ok()?;
    Some(parse_call_count(&text, "evalsha"))
}

fn parse_call_count(text: &str, name: &str) -> u64 {
    let begin = format!("cmdstat_{name}:calls=");
    let line = text.lines().find_map(|line| line.strip_prefix(&begin));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}
