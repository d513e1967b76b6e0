//! The minimal examples as processes: on SIGTERM each finishes its active run, releases its locks
//! and exits with 0.

use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
};

use lockgate::{JobId, JobState, Key};
use lockgate_tests::{
    REFUND_GATE, connect_with_long_timeout, eventually, free_port, request, shared_server,
};
use tokio::net::TcpStream;

/// A running example and the file that its refund waits for. Dropping it kills the process.
struct ExampleProcess {
    addr: SocketAddr,
    gate_path: PathBuf,
    child_process: Child,
}

impl ExampleProcess {
    async fn start(program: &str, store: &str) -> Self {
        // Outside of the ephemeral range: a connection attempt must not connect to its own port.
        let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let gate = std::env::temp_dir().join(uuid::Uuid::new_v4().to_string());
        let child = Command::new(program)
            .env("LOCKGATE_STORE", store)
            .env("LISTEN", addr.to_string())
            .env(REFUND_GATE, &gate)
            .stdin(Stdio::null())
            .spawn();
        let program = Self { addr, gate_path: gate, child_process: child.expect("it starts") };
        eventually("the program to listen", async || program.is_listening().await).await;
        program
    }

    async fn is_listening(&self) -> bool {
        TcpStream::connect(self.addr).await.is_ok()
    }

    fn terminate(&self) {
        let sent =
            Command::new("kill").args(["-TERM", &self.child_process.id().to_string()]).status();
        assert!(sent.is_ok_and(|sent| sent.success()), "no program to stop");
    }

    async fn wait_for_exit(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the program to end", async || {
            status = self.child_process.try_wait().ok().flatten();
            status.is_some()
        })
        .await;
        status.expect("it has ended")
    }
}

impl Drop for ExampleProcess {
    fn drop(&mut self) {
        let _ = self.child_process.kill();
        let _ = self.child_process.wait();
        let _ = fs::remove_file(&self.gate_path);
        let _ = fs::remove_file(self.gate_path.with_extension("here"));
    }
}

/// The server has no open requests, so the process waits only for its worker.
async fn check_shutdown_during_run(program: &str) {
    let url = shared_server().await.url(&uuid::Uuid::new_v4().simple().to_string());
    let store = connect_with_long_timeout(&url).await;
    let order = || store.lock(Key::path_param("id", "7"));
    let mut program = ExampleProcess::start(program, &url).await;

    let busy = order().acquire().await.expect("the lock is free");
    let accepted =
        request(program.addr, "POST", "/orders/7/refund").send().await.expect_status(202);
    let id = accepted.header("location").rsplit('/').next().expect("an id").to_owned();
    let id = id.parse::<JobId>().expect("an id");
    let state =
        async || store.deferred_jobs().get(&id).await.expect("it is there").map(|job| job.state);
    busy.release().await;
    // A claimed job whose handler has not started returns to its queue on shutdown.
    let started_file = program.gate_path.with_extension("here");
    eventually("the refund to run", async || started_file.exists()).await;

    program.terminate();
    eventually("the server to stop", async || !program.is_listening().await).await;
    fs::write(&program.gate_path, "").expect("a file");
    let status = program.wait_for_exit().await;
    assert_eq!(status.code(), Some(0), "{status}");
    assert_eq!(state().await, Some(JobState::Done));
    order()
        .acquire()
        .await
        .expect("the lock was released before the process ended")
        .release()
        .await;
}

#[tokio::test]
async fn axum_finishes_active_run_on_sigterm() {
    check_shutdown_during_run(env!("CARGO_BIN_EXE_minimal-axum")).await;
}

#[tokio::test]
async fn actix_web_finishes_active_run_on_sigterm() {
    check_shutdown_during_run(env!("CARGO_BIN_EXE_minimal-actix-web")).await;
}
