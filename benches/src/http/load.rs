//! The load: so many keep-alive connections, each with one request under way at a time. It does as little
//! as it can for an answer, since it shares the two cores with the server.

use std::{
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

/// Of each connection, taken in turn: no two connections ever want the same one.
const KEYS: usize = 100;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) port: u16,
    pub(crate) connections: usize,
    pub(crate) window: Duration,
}

/// What a window of load comes to. Times in milliseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) requests: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) longest: f64,
    /// Connections that ended, by an answer that was not 200 or by none at all.
    pub(crate) failed: usize,
    pub(crate) first_failure: Option<String>,
}

/// When an answer was complete, and how long it took, in nanoseconds.
type Answers = Mutex<Vec<(u64, u64)>>;

pub(crate) fn main(plan: &str) -> Outcome<()> {
    let plan: Plan = serde_json::from_str(plan)?;
    let orders = Orders::listen(AT_MOST);
    // One thread: a second one would only take more from the server.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let streams = runtime.block_on(connect(&plan))?;
    let start = orders.start()?;
    let end = start + clock::nanos(plan.window);
    let load = runtime.block_on(run(streams, start, end));
    say(&serde_json::to_string(&load)?)
}

async fn connect(plan: &Plan) -> Outcome<Vec<TcpStream>> {
    let mut streams = Vec::new();
    for _ in 0..plan.connections {
        let stream = TcpStream::connect(("127.0.0.1", plan.port)).await?;
        stream.set_nodelay(true)?;
        streams.push(stream);
    }
    Ok(streams)
}

async fn run(streams: Vec<TcpStream>, start: u64, end: u64) -> Load {
    let answers: Arc<Answers> = Arc::default();
    let clients: Vec<_> = (0..)
        .zip(streams)
        .map(|(number, stream)| tokio::spawn(client(number, stream, end, Arc::clone(&answers))))
        .collect();
    let mut load = Load::default();
    for client in clients {
        if let Ok(Err(error)) = client.await {
            load.failed += 1;
            load.first_failure.get_or_insert_with(|| error.to_string());
        }
    }
    let answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
    let counted = answers.iter().filter(|(at, _)| (start..end).contains(at));
    let mut took: Vec<u64> = counted.map(|(_, took)| *took).collect();
    took.sort_unstable();
    let count = u64::try_from(took.len()).unwrap_or(u64::MAX);
    load.requests = float(count) * 1e9 / float(end - start);
    load.p50 = millis(per_mille(&took, 500));
    load.p99 = millis(per_mille(&took, 990));
    load.longest = millis(per_mille(&took, 1000));
    load
}

async fn client(
    number: usize,
    mut stream: TcpStream,
    end: u64,
    answers: Arc<Answers>,
) -> Outcome<()> {
    let requests = (0..KEYS).map(|key| {
        format!(
            "POST /orders/{number}-{key}/pay HTTP/1.1\r\nhost: bench\r\ncontent-length: 0\r\n\r\n"
        )
    });
    let mut buffer = Vec::with_capacity(1024);
    for request in requests.collect::<Vec<_>>().iter().cycle() {
        let asked = clock::now();
        if asked >= end {
            break;
        }
        stream.write_all(request.as_bytes()).await?;
        answer(&mut stream, &mut buffer).await?;
        let at = clock::now();
        answers.lock().unwrap_or_else(PoisonError::into_inner).push((at, at - asked));
    }
    Ok(())
}

/// Reads one answer to its end.
async fn answer(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Outcome<()> {
    buffer.clear();
    loop {
        if let Some(length) = length(buffer)?
            && buffer.len() >= length
        {
            return Ok(());
        }
        if stream.read_buf(buffer).await? == 0 {
            return Err("the server closed the connection".into());
        }
    }
}

/// The length of the whole answer, once its head is there. Only 200 with a `content-length` will do.
fn length(bytes: &[u8]) -> Outcome<Option<usize>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&bytes[..end])?;
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    if !status.starts_with("HTTP/1.1 200 ") {
        return Err(format!("answered `{status}`").into());
    }
    let body = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>())
    });
    let body = body.ok_or("an answer without content-length")??;
    Ok(Some(end + 4 + body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_where_an_answer_ends() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nfence: 7\r\n\r\nok";
        assert_eq!(length(answer).unwrap(), Some(answer.len()));
        assert_eq!(length(&answer[..30]).unwrap(), None);
        assert_eq!(length(b"").unwrap(), None);
    }

    #[test]
    fn takes_no_other_answer_for_success() {
        assert!(length(b"HTTP/1.1 409 Conflict\r\ncontent-length: 0\r\n\r\n").is_err());
        assert!(length(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
