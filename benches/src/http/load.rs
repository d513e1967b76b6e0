//! The load: so many keep-alive connections, each with one request under way at a time. It does as little
//! as it can for an answer, since it shares the two cores with the server.

use std::{
    io::Write as _,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    runtime::Builder,
};

use crate::{
    clock,
    lifeline::{Orders, say},
    outcome::Outcome,
    stats::{float, millis, per_mille},
};

const AT_MOST: Duration = Duration::from_secs(120);

/// Orders of each connection, taken in turn: no two connections ever want the same one.
const ORDERS: usize = 100;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Of the servers, among which the connections are divided.
    pub(crate) ports: Vec<u16>,
    pub(crate) connections: usize,
    pub(crate) requests: Requests,
    pub(crate) window: Duration,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Requests {
    /// `POST /orders/{id}/pay`, ids of each connection's own. Only 200 will do.
    Orders,
    /// `GET /limited` with a key in the field `x-key`: so many keys, each connection's own if there
    /// are enough of them. 200 and 429 will do, and are counted.
    Limited { keys: usize },
}

/// What a window of load comes to. Times in milliseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) requests: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) longest: f64,
    /// Answers of 200 and of 429 since the connections were opened: the warm-up's too.
    pub(crate) admitted: u64,
    pub(crate) refused: u64,
    /// Connections that ended, by an answer that will not do or by none at all.
    pub(crate) failed: usize,
    pub(crate) first_failure: Option<String>,
}

/// What the connections have seen together; they share one thread.
#[derive(Debug, Default)]
struct Seen {
    /// When an answer was complete, and how long it took, in nanoseconds.
    answers: Vec<(u64, u64)>,
    refused: u64,
}

pub(crate) fn main(plan: &str) -> Outcome<()> {
    let plan: Plan = serde_json::from_str(plan)?;
    let orders = Orders::listen("the load", AT_MOST);
    // One thread: a second one would only take more from the server.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let streams = runtime.block_on(connect(&plan))?;
    let start = orders.start()?;
    let end = start + clock::nanos(plan.window);
    let load = runtime.block_on(run(&plan, streams, start, end));
    say(&serde_json::to_string(&load)?)
}

async fn connect(plan: &Plan) -> Outcome<Vec<TcpStream>> {
    let mut streams = Vec::new();
    for port in plan.ports.iter().cycle().take(plan.connections) {
        let stream = TcpStream::connect(("127.0.0.1", *port)).await?;
        stream.set_nodelay(true)?;
        streams.push(stream);
    }
    Ok(streams)
}

async fn run(plan: &Plan, streams: Vec<TcpStream>, start: u64, end: u64) -> Load {
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let clients: Vec<_> = (0..)
        .zip(streams)
        .map(|(number, stream)| {
            let lines = plan.requests.lines(number, plan.connections);
            tokio::spawn(client(stream, lines, end, Arc::clone(&seen)))
        })
        .collect();
    let mut load = Load::default();
    for client in clients {
        if let Ok(Err(error)) = client.await {
            load.failed += 1;
            load.first_failure.get_or_insert_with(|| error.to_string());
        }
    }
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let counted = seen.answers.iter().filter(|(at, _)| (start..end).contains(at));
    let mut took: Vec<u64> = counted.map(|(_, took)| *took).collect();
    took.sort_unstable();
    load.requests = float(count(&took)) * 1e9 / float(end - start);
    load.p50 = millis(per_mille(&took, 500));
    load.p99 = millis(per_mille(&took, 990));
    load.longest = millis(per_mille(&took, 1000));
    load.admitted = count(&seen.answers) - seen.refused;
    load.refused = seen.refused;
    load
}

fn count<T>(all: &[T]) -> u64 {
    u64::try_from(all.len()).unwrap_or(u64::MAX)
}

impl Requests {
    /// What one of so many connections sends, one after the other.
    fn lines(self, number: usize, connections: usize) -> Lines {
        match self {
            Self::Orders => Lines {
                before: format!("POST /orders/{number}-"),
                after: "/pay HTTP/1.1\r\nhost: bench\r\ncontent-length: 0\r\n\r\n".to_owned(),
                keys: Keys { next: 0, first: 0, step: 1, end: ORDERS },
                may_be_refused: false,
            },
            Self::Limited { keys } => Lines {
                before: "GET /limited HTTP/1.1\r\nhost: bench\r\nx-key: ".to_owned(),
                after: "\r\n\r\n".to_owned(),
                keys: Keys::divided(keys, number, connections),
                may_be_refused: true,
            },
        }
    }
}

/// Requests that differ in a number.
struct Lines {
    before: String,
    after: String,
    keys: Keys,
    may_be_refused: bool,
}

/// Every so many-th number, again and again.
struct Keys {
    next: usize,
    first: usize,
    step: usize,
    end: usize,
}

impl Keys {
    /// No two connections have the same one, if there is one for each.
    fn divided(keys: usize, number: usize, connections: usize) -> Self {
        let first = number % keys.max(1);
        Self { next: first, first, step: connections, end: keys }
    }
}

impl Iterator for Keys {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let key = self.next;
        let next = key + self.step;
        self.next = if next < self.end { next } else { self.first };
        Some(key)
    }
}

async fn client(
    mut stream: TcpStream,
    mut lines: Lines,
    end: u64,
    seen: Arc<Mutex<Seen>>,
) -> Outcome<()> {
    let (mut request, mut answer) = (Vec::with_capacity(128), Vec::with_capacity(2048));
    loop {
        let asked = clock::now();
        if asked >= end {
            return Ok(());
        }
        let key = lines.keys.next().unwrap_or_default();
        request.clear();
        write!(request, "{}{key}{}", lines.before, lines.after)?;
        stream.write_all(&request).await?;
        let refused = read(&mut stream, &mut answer).await? == REFUSED;
        let at = clock::now();
        if refused && !lines.may_be_refused {
            return Err("answered 429".into());
        }
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.answers.push((at, at - asked));
        seen.refused += u64::from(refused);
    }
}

const REFUSED: u16 = 429;

/// Reads one answer to its end: its status.
async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Outcome<u16> {
    buffer.clear();
    loop {
        if let Some((status, length)) = head(buffer)?
            && buffer.len() >= length
        {
            return Ok(status);
        }
        if stream.read_buf(buffer).await? == 0 {
            return Err("the server closed the connection".into());
        }
    }
}

/// The status and the length of the whole answer, once its head is there. Only 200 and 429 with a
/// `content-length` will do.
fn head(bytes: &[u8]) -> Outcome<Option<(u16, usize)>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&bytes[..end])?;
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    let code = match status.get(..13) {
        Some("HTTP/1.1 200 ") => 200,
        Some("HTTP/1.1 429 ") => REFUSED,
        _ => return Err(format!("answered `{status}`").into()),
    };
    let body = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>())
    });
    let body = body.ok_or("an answer without content-length")??;
    Ok(Some((code, end + 4 + body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_where_an_answer_ends() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nfence: 7\r\n\r\nok";
        assert_eq!(head(answer).unwrap(), Some((200, answer.len())));
        assert_eq!(head(&answer[..30]).unwrap(), None);
        assert_eq!(head(b"").unwrap(), None);
        let refused = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(head(refused).unwrap(), Some((REFUSED, refused.len())));
    }

    #[test]
    fn takes_nothing_else_for_an_answer() {
        assert!(head(b"HTTP/1.1 409 Conflict\r\ncontent-length: 0\r\n\r\n").is_err());
        assert!(head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }

    #[test]
    fn keys_are_divided_among_the_connections() {
        let keys = |all, number| Keys::divided(all, number, 3).take(4).collect::<Vec<_>>();
        assert_eq!(keys(8, 0), [0, 3, 6, 0]);
        assert_eq!(keys(8, 2), [2, 5, 2, 5]);
        assert_eq!(keys(1, 2), [0, 0, 0, 0]);
    }
}
