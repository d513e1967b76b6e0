//! `Shop`: a store, and the program on it.

use std::{
    io::Write as _,
    process::{Command, Output, Stdio},
};

use lockgate::Store;
use lockgate_tests::{RedisServer, connect_with_long_timeout};
use serde_json::Value;

pub(crate) struct Shop {
    pub(crate) url: String,
    pub(crate) store: Store,
    _server: RedisServer,
}

impl Shop {
    pub(crate) async fn start() -> Self {
        let server = RedisServer::start().await;
        let url = server.url("shop");
        let store = connect_with_long_timeout(&url).await;
        Self { url, store, _server: server }
    }

    /// Runs the program and returns its exit code, its output and its error output.
    pub(crate) async fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let mut program = self.prepare(env!("CARGO_BIN_EXE_lockgate"));
        program.args(args);
        run_with_input(program, "").await
    }

    pub(crate) async fn run_json(&self, args: &[&str]) -> Value {
        let (code, stdout, stderr) = self.run(&[args, &["--json"]].concat()).await;
        assert_eq!(code, Some(0), "{args:?}: {stderr}");
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
    }

    /// Runs the program on a terminal where an operator types `answer`. Returns its exit code and
    /// what the terminal shows.
    pub(crate) async fn run_on_terminal(
        &self,
        args: &[&str],
        answer: &str,
    ) -> (Option<i32>, String) {
        let words = [&[env!("CARGO_BIN_EXE_lockgate")], args].concat();
        let command: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
        let mut script = self.prepare("script");
        script.args(["--quiet", "--return", "--command", &command.join(" "), "/dev/null"]);
        let (code, text, _) = run_with_input(script, answer).await;
        (code, text)
    }

    /// Returns a command with the variables of the program.
    pub(crate) fn prepare(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("LOCKGATE_STORE", &self.url).env("LOCKGATE_OPERATOR", "ada");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// Not on the thread of the test, on which the store answers the program's inquiries.
async fn run_with_input(mut program: Command, input: &str) -> (Option<i32>, String, String) {
    let input = input.to_owned();
    let output = tokio::task::spawn_blocking(move || {
        let mut child = program.spawn().expect("it is installed");
        let mut stdin = child.stdin.take().expect("a pipe");
        // A program that does not ask may have ended.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        child.wait_with_output()
    });
    let Output { status, stdout, stderr } = output.await.expect("no panic").expect("it ends");
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into());
    (status.code(), stdout, stderr)
}
