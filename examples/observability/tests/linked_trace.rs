//! The example as two processes on one Redis: one accepts a request, the other runs it. The spans
//! of both form one linked trace.

use std::{
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    process::{Child, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use lockgate::Key;
use lockgate_tests::{connect_with_long_timeout, eventually, free_port, request, shared_server};
use tokio::net::TcpStream;

const CLIENT_TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT_SPAN: &str = "b7ad6b7169203331";

/// A running example, with the lines that it has printed. Dropping it kills the process.
struct TracedProcess {
    addr: SocketAddr,
    lines: Arc<Mutex<Vec<String>>>,
    child: Child,
}

impl TracedProcess {
    async fn start(role: &str, store: &str) -> Self {
        let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut child = Command::new(env!("CARGO_BIN_EXE_example-observability"))
            .env("LOCKGATE_STORE", store)
            .env("LISTEN", addr.to_string())
            .env("ROLE", role)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let lines = collect_lines(child.stdout.take().expect("it is piped"));
        let process = Self { addr, lines, child };
        eventually("the program to listen", async || TcpStream::connect(addr).await.is_ok()).await;
        process
    }

    /// Waits for the line of a span.
    async fn span(&self, name: &str) -> SpanLine {
        let find = || {
            let lines = self.lines.lock().expect("no reader has panicked");
            lines.iter().find(|line| line.starts_with(&format!("{name} "))).cloned()
        };
        eventually(name, async || find().is_some()).await;
        SpanLine(find().expect("it was there"))
    }
}

impl Drop for TracedProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect_lines(output: ChildStdout) -> Arc<Mutex<Vec<String>>> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&lines);
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            collected.lock().expect("no reader has panicked").push(line);
        }
    });
    lines
}

/// Line of a finished span.
struct SpanLine(String);

impl SpanLine {
    fn value(&self, name: &str) -> Option<&str> {
        self.0.split(' ').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
    }

    fn path(&self) -> String {
        let part = |name| self.value(name).unwrap_or_default();
        format!("{}/{}", part("trace"), part("span"))
    }
}

#[tokio::test]
async fn request_accept_and_run_of_two_processes_form_one_linked_trace() {
    let url = shared_server().await.url(&uuid::Uuid::new_v4().simple().to_string());
    let store = connect_with_long_timeout(&url).await;
    let web = TracedProcess::start("web", &url).await;
    let worker = TracedProcess::start("worker", &url).await;

    let busy = store.lock(Key::path_param("id", "7")).acquire().await.expect("the lock is free");
    let client_span = format!("00-{CLIENT_TRACE}-{CLIENT_SPAN}-01");
    let accepted =
        request(web.addr, "POST", "/orders/7/refund").header("traceparent", &client_span);
    let _ = accepted.send().await.expect_status(202);
    busy.release().await;

    let (request, accept) = (web.span("request").await, web.span("lockgate.defer.accept").await);
    let (run, handler) = (worker.span("lockgate.defer.run").await, worker.span("refund").await);
    for (process, span) in
        [("web", &request), ("web", &accept), ("worker", &run), ("worker", &handler)]
    {
        println!("{process:6} {}", span.0);
    }
    let trace = Some(CLIENT_TRACE);
    assert_eq!((request.value("trace"), request.value("parent")), (trace, Some(CLIENT_SPAN)));
    assert_eq!((accept.value("trace"), accept.value("parent")), (trace, request.value("span")));
    assert_eq!(run.value("link"), Some(&*accept.path()), "the run is linked to the acceptance");
    assert_ne!(run.value("trace"), trace, "the run is a trace of its own");
    assert_eq!(handler.value("parent"), run.value("span"), "the handler is within the run");
    assert_eq!(run.value("job"), accept.value("job"));
    assert_eq!(run.value("attempt"), Some("1"));
}
