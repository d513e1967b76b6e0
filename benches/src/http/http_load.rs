//! Load process: keep-alive connections with one request in flight each. It does little work per
//! response, because it shares the two cores with the server.

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
    bench_result::BenchResult,
    clock,
    runner_commands::{RunnerCommands, send_line},
    stats::{nanos_to_millis, per_mille_value, to_f64},
};

const MAX_RUN_TIME: Duration = Duration::from_secs(120);

/// Number of order ids of each connection, used in turn. Connections never share an id.
const ORDERS_PER_CONNECTION: usize = 100;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LoadPlan {
    /// Ports of the servers, among which the connections are divided.
    pub(crate) ports: Vec<u16>,
    pub(crate) connections: usize,
    pub(crate) pattern: RequestPattern,
    pub(crate) window: Duration,
}

/// Requests of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RequestPattern {
    /// `POST /orders/{id}/pay`, with ids that each connection has for itself. The status must be
    /// 200.
    Orders,
    /// `GET /limited` with one of `keys` keys in the header `x-key`. If there are enough keys,
    /// connections do not share them. Statuses 200 and 429 are allowed and counted.
    Limited { keys: usize },
}

/// Measurement of a window. Times are milliseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct LoadReport {
    pub(crate) requests_per_second: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) longest: f64,
    /// Responses with 200 and with 429 since the connections were opened, including the warm-up.
    pub(crate) admitted: u64,
    pub(crate) refused: u64,
    /// Connections that ended because of an invalid response or none.
    pub(crate) failed_connections: usize,
    pub(crate) first_failure: Option<String>,
}

/// Responses of all connections, which share one thread.
#[derive(Debug, Default)]
struct ResponseSamples {
    /// Time of each complete response and its latency, in nanoseconds.
    samples: Vec<(u64, u64)>,
    refused: u64,
}

pub(crate) fn main(plan: &str) -> BenchResult<()> {
    let plan: LoadPlan = serde_json::from_str(plan)?;
    let commands = RunnerCommands::listen("the load", MAX_RUN_TIME);
    // One thread, because a second one would take CPU time from the server.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let streams = runtime.block_on(open_connections(&plan))?;
    let start = commands.await_start()?;
    let end = start + clock::duration_nanos(plan.window);
    let load = runtime.block_on(run_load(&plan, streams, start, end));
    send_line(&serde_json::to_string(&load)?)
}

async fn open_connections(plan: &LoadPlan) -> BenchResult<Vec<TcpStream>> {
    let mut streams = Vec::new();
    for port in plan.ports.iter().cycle().take(plan.connections) {
        let stream = TcpStream::connect(("127.0.0.1", *port)).await?;
        stream.set_nodelay(true)?;
        streams.push(stream);
    }
    Ok(streams)
}

async fn run_load(plan: &LoadPlan, streams: Vec<TcpStream>, start: u64, end: u64) -> LoadReport {
    let responses: Arc<Mutex<ResponseSamples>> = Arc::default();
    let clients: Vec<_> = (0..)
        .zip(streams)
        .map(|(number, stream)| {
            let template = plan.pattern.request_template(number, plan.connections);
            tokio::spawn(run_client(stream, template, end, Arc::clone(&responses)))
        })
        .collect();
    let mut load = LoadReport::default();
    for client in clients {
        if let Ok(Err(error)) = client.await {
            load.failed_connections += 1;
            load.first_failure.get_or_insert_with(|| error.to_string());
        }
    }
    let responses = responses.lock().unwrap_or_else(PoisonError::into_inner);
    let in_window =
        responses.samples.iter().filter(|(received_at, _)| (start..end).contains(received_at));
    let mut latencies: Vec<u64> = in_window.map(|(_, latency)| *latency).collect();
    latencies.sort_unstable();
    load.requests_per_second = to_f64(len_u64(&latencies)) * 1e9 / to_f64(end - start);
    load.p50 = nanos_to_millis(per_mille_value(&latencies, 500));
    load.p99 = nanos_to_millis(per_mille_value(&latencies, 990));
    load.longest = nanos_to_millis(per_mille_value(&latencies, 1000));
    load.admitted = len_u64(&responses.samples) - responses.refused;
    load.refused = responses.refused;
    load
}

fn len_u64<T>(items: &[T]) -> u64 {
    u64::try_from(items.len()).unwrap_or(u64::MAX)
}

impl RequestPattern {
    /// Creates the requests of connection `number` of `connections`.
    fn request_template(self, number: usize, connections: usize) -> RequestTemplate {
        match self {
            Self::Orders => RequestTemplate {
                prefix: format!("POST /orders/{number}-"),
                suffix: "/pay HTTP/1.1\r\nhost: bench\r\ncontent-length: 0\r\n\r\n".to_owned(),
                keys: KeySequence { next: 0, first: 0, step: 1, end: ORDERS_PER_CONNECTION },
                allows_refusal: false,
            },
            Self::Limited { keys } => RequestTemplate {
                prefix: "GET /limited HTTP/1.1\r\nhost: bench\r\nx-key: ".to_owned(),
                suffix: "\r\n\r\n".to_owned(),
                keys: KeySequence::for_connection(keys, number, connections),
                allows_refusal: true,
            },
        }
    }
}

/// Requests that differ only by their key.
struct RequestTemplate {
    prefix: String,
    suffix: String,
    keys: KeySequence,
    allows_refusal: bool,
}

/// Repeating sequence of every `step`-th key.
struct KeySequence {
    next: usize,
    first: usize,
    step: usize,
    end: usize,
}

impl KeySequence {
    /// Creates the sequence of one connection. Sequences are disjoint if there is a key for each
    /// connection.
    fn for_connection(keys: usize, number: usize, connections: usize) -> Self {
        let first = number % keys.max(1);
        Self { next: first, first, step: connections, end: keys }
    }
}

impl Iterator for KeySequence {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let current = self.next;
        let next = current + self.step;
        self.next = if next < self.end { next } else { self.first };
        Some(current)
    }
}

async fn run_client(
    mut stream: TcpStream,
    mut template: RequestTemplate,
    end: u64,
    responses: Arc<Mutex<ResponseSamples>>,
) -> BenchResult<()> {
    let (mut request, mut response) = (Vec::with_capacity(128), Vec::with_capacity(2048));
    loop {
        let sent_at = clock::now();
        if sent_at >= end {
            return Ok(());
        }
        let key = template.keys.next().unwrap_or_default();
        request.clear();
        write!(request, "{}{key}{}", template.prefix, template.suffix)?;
        stream.write_all(&request).await?;
        let is_refused = read_response(&mut stream, &mut response).await? == TOO_MANY_REQUESTS;
        let received_at = clock::now();
        if is_refused && !template.allows_refusal {
            return Err("unexpected status 429".into());
        }
        let mut responses = responses.lock().unwrap_or_else(PoisonError::into_inner);
        responses.samples.push((received_at, received_at - sent_at));
        responses.refused += u64::from(is_refused);
    }
}

const TOO_MANY_REQUESTS: u16 = 429;

/// Reads one response to its end and returns its status.
async fn read_response(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> BenchResult<u16> {
    buffer.clear();
    loop {
        if let Some((status, length)) = parse_head(buffer)?
            && buffer.len() >= length
        {
            return Ok(status);
        }
        if stream.read_buf(buffer).await? == 0 {
            return Err("the server closed the connection".into());
        }
    }
}

/// Returns the status and the length of the whole response, once its head has arrived. The status
/// must be 200 or 429, and `content-length` must be present.
fn parse_head(bytes: &[u8]) -> BenchResult<Option<(u16, usize)>> {
    let Some(head_length) = bytes.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&bytes[..head_length])?;
    let mut lines = head.split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    let code = match status_line.get(..13) {
        Some("HTTP/1.1 200 ") => 200,
        Some("HTTP/1.1 429 ") => TOO_MANY_REQUESTS,
        _ => return Err(format!("unexpected status line `{status_line}`").into()),
    };
    let body_length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>())
    });
    let body_length = body_length.ok_or("a response without content-length")??;
    Ok(Some((code, head_length + 4 + body_length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_response_is_recognized() {
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nfence: 7\r\n\r\nok";
        assert_eq!(parse_head(response).unwrap(), Some((200, response.len())));
        assert_eq!(parse_head(&response[..30]).unwrap(), None);
        assert_eq!(parse_head(b"").unwrap(), None);
        let refused = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(parse_head(refused).unwrap(), Some((TOO_MANY_REQUESTS, refused.len())));
    }

    #[test]
    fn other_status_or_missing_length_is_error() {
        assert!(parse_head(b"HTTP/1.1 409 Conflict\r\ncontent-length: 0\r\n\r\n").is_err());
        assert!(parse_head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }

    #[test]
    fn connections_get_distinct_keys() {
        let keys = |key_count, number| {
            KeySequence::for_connection(key_count, number, 3).take(4).collect::<Vec<_>>()
        };
        assert_eq!(keys(8, 0), [0, 3, 6, 0]);
        assert_eq!(keys(8, 2), [2, 5, 2, 5]);
        assert_eq!(keys(1, 2), [0, 0, 0, 0]);
    }
}
