//! Counts of commands and scripts that a server reports.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

/// A stalled server sends no reply.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the number of `EVALSHA` calls since the server started, or `None` without a reply. The
/// calls of a new connection are other commands.
pub(crate) fn script_calls(port: u16) -> Option<u64> {
    let mut server = TcpStream::connect(("127.0.0.1", port)).ok()?;
    server.set_read_timeout(Some(READ_TIMEOUT)).ok()?;
    server.write_all(b"INFO commandstats\r\nQUIT\r\n").ok()?;
    let mut text = String::new();
    server.read_to_string(&mut text).ok()?;
    Some(parse_call_count(&text, "evalsha"))
}

fn parse_call_count(text: &str, name: &str) -> u64 {
    let prefix = format!("cmdstat_{name}:calls=");
    let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}
