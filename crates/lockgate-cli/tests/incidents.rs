//! The commands of `docs/incidents.md`, run in the situations that it describes: its output is that
//! of the program.

use std::{
    env,
    path::Path,
    process::{Command, Output},
};

use lockgate::{Key, LockGuard, Store};
use lockgate_tests::{
    DemoProcess, RedisServer, TEST_TIMEOUT, WebFramework, connect_with_long_timeout, eventually,
};

const PAGE: &str = include_str!("../../../docs/incidents.md");

/// A command of the page, and the lines that the page shows below it.
struct DocumentedCommand {
    command: String,
    lines: Vec<&'static str>,
}

/// The two demos on one server.
struct Shop {
    server: RedisServer,
    url: String,
    store: Store,
    axum: DemoProcess,
    actix: DemoProcess,
}

impl Shop {
    async fn start() -> Self {
        let server = RedisServer::start().await;
        let url = server.url("shop");
        let store = connect_with_long_timeout(&url).await;
        let axum = DemoProcess::start(WebFramework::Axum, &url).await;
        let actix = DemoProcess::start(WebFramework::Actix, &url).await;
        Self { server, url, store, axum, actix }
    }

    async fn acquire_order(&self, order: u32) -> LockGuard {
        let key = Key::path_param("id", &order.to_string());
        self.store.lock(key).acquire().await.expect("it is free")
    }

    async fn defer_refund(&self, order: u32, query: &str) {
        let refund = self.axum.post(&format!("/orders/{order}/refund?{query}"));
        let _ = refund.send().await.expect_status(202);
    }

    /// Runs the commands of a section of the page, with the id of a real job.
    async fn run_section(&self, heading: &str, job: &str) {
        for DocumentedCommand { command, lines } in commands_of(heading) {
            let command = command.split(' ').map(|part| if is_job_id(part) { job } else { part });
            let command = command.collect::<Vec<_>>().join(" ");
            let is_action = command.contains("--reason");
            let mut text = self.run(&command).await;
            // The demos get there on their own, so the question is repeated, but no action.
            let shows_lines = |text: &str| {
                let shown: Vec<_> = text.lines().map(parts_without_numbers).collect();
                lines.iter().all(|line| shown.contains(&parts_without_numbers(line)))
            };
            let start = std::time::Instant::now();
            while !is_action && !shows_lines(&text) && start.elapsed() < TEST_TIMEOUT {
                text = self.run(&command).await;
            }
            assert!(shows_lines(&text), "{command} should print {lines:#?}\nbut printed\n{text}");
        }
    }

    /// Runs a command line of a shell and returns what it prints.
    async fn run(&self, command: &str) -> String {
        let program = Path::new(env!("CARGO_BIN_EXE_lockgate"));
        let folder = program.parent().expect("it lies in a folder").display();
        let path = format!("{folder}:{}", env::var("PATH").unwrap_or_default());
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).env("PATH", path);
        shell.env("LOCKGATE_STORE", &self.url).env("LOCKGATE_OPERATOR", "ada");
        // Not on this thread, on which the store answers the program's inquiry.
        let output = tokio::task::spawn_blocking(move || shell.output());
        let Output { status, stdout, stderr } = output.await.expect("no panic").expect("a shell");
        let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into());
        let stdout: String = stdout;
        assert!(status.success(), "{command}: {status}: {stdout}{stderr}");
        stdout
    }
}

/// Returns the commands below a heading of the page.
fn commands_of(heading: &str) -> Vec<DocumentedCommand> {
    let heading = format!("## {heading}\n");
    let (_, section) = PAGE.split_once(&heading).expect("the page has the heading");
    let section = section.split("\n## ").next().expect("the section");
    let mut commands: Vec<DocumentedCommand> = Vec::new();
    for block in section.split("```console\n").skip(1) {
        let lines = block.split("```").next().expect("the block").lines();
        for line in lines.filter(|line| !line.is_empty() && *line != "..") {
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (Some(command), _) => {
                    commands.push(DocumentedCommand { command: command.to_owned(), lines: vec![] });
                }
                (None, Some(command)) => command.lines.push(line),
                (None, None) => panic!("output without a command: {line}"),
            }
        }
    }
    assert!(!commands.is_empty(), "{heading} has no command");
    commands
}

fn is_job_id(part: &str) -> bool {
    part.len() == 34 && part.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_task_id(part: &str) -> bool {
    part.len() == 22 && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Returns what does not change from run to run: the parts without a digit, but no ids, and not the
/// host, which precedes `(pid 7)`.
fn parts_without_numbers(line: &str) -> Vec<&str> {
    let parts: Vec<_> = line.split_whitespace().collect();
    let next_parts = parts.iter().skip(1).copied().chain([""]);
    let is_stable = |part: &&str| !part.contains(|c: char| c.is_ascii_digit()) && !is_task_id(part);
    let stable = parts.iter().copied().zip(next_parts).filter(|(_, next)| *next != "(pid");
    stable.map(|(part, _)| part).filter(is_stable).collect()
}

#[tokio::test]
async fn stuck_lock() {
    let shop = Shop::start().await;
    let pay = shop.axum.post("/orders/7/pay?ms=60000").spawn();
    let holder = async || shop.run("lockgate locks show p:id::7").await.contains("is held by");
    eventually("the payment to run", holder).await;
    let ship = shop.actix.post("/orders/7/ship").spawn();
    shop.defer_refund(7, "ms=1").await;
    shop.run_section("Order 7 is shut", "").await;
    let _ = pay.response().await.expect_status(503);
    let _ = ship.response().await.expect_status(200);
}

#[tokio::test]
async fn growing_queue() {
    let shop = Shop::start().await;
    let mut held = Vec::new();
    for order in 101..=140 {
        held.push(shop.acquire_order(order).await);
        shop.defer_refund(order, "ms=60000").await;
    }
    for guard in held {
        let _ = guard.release().await;
    }
    // The demos have no task queue, so the test is the application that pushes, without a worker.
    let queue = shop.store.queue::<String>("emails");
    for customer in ["ada", "grace", "alan"] {
        let _ = queue.push(&customer.to_owned()).await.expect("there is room");
    }
    shop.run_section("A queue grows", "").await;
}

#[tokio::test]
async fn dead_letters() {
    let shop = Shop::start().await;
    let held = shop.acquire_order(4).await;
    for _ in 0..3 {
        shop.defer_refund(4, "fails=1&ms=1").await;
    }
    let _ = held.release().await;
    let jobs = shop.store.deferred_jobs();
    eventually("three dead letters", async || jobs.stats().await.is_ok_and(|s| s.dead == 3)).await;
    let page = jobs.dead(Default::default(), 1).await.expect("the store answers");
    shop.run_section("Dead letters after a bad deploy", page.jobs[0].id.as_str()).await;
    eventually("all to be done", async || {
        jobs.stats().await.is_ok_and(|stats| (stats.pending, stats.dead) == (0, 0))
    })
    .await;
}

#[tokio::test]
async fn client_over_its_quota() {
    let shop = Shop::start().await;
    for _ in 0..12 {
        let _ = shop.axum.get("/limited").send().await;
    }
    shop.run_section("A client is over its quota", "").await;
}

#[tokio::test]
async fn empty_redis() {
    let mut shop = Shop::start().await;
    let _ = shop.axum.post("/orders/8/pay?ms=60000").spawn();
    shop.server.kill();
    shop.server.restart().await;
    for demo in [&shop.axum, &shop.actix] {
        let is_back = async || demo.get("/healthz").send().await.status == 200;
        eventually("the demo to be back", is_back).await;
    }
    shop.run_section("Redis came back empty", "").await;
}
