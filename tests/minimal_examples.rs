//! The minimal examples as processes: on SIGTERM each finishes its active run, releases its locks
//! and exits with 0.

use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
};

use lockgate::{JobId, JobState, Key};
use lockgate_tests::{REFUND_GATE, eventually, free_port, patient_store, request, shared_server};
use tokio::net::TcpStream;

/// A running example and the file that its refund waits for. Dropping it kills the process.
struct Program {
    addr: SocketAddr,
    gate: PathBuf,
    child: Child,
}

impl Program {
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
        let program = Self { addr, gate, child: child.expect("it starts") };
        eventually("the program to listen", async || program.listens().await).await;
        program
    }

    async fn listens(&self) -> bool {
        TcpStream::connect(self.addr).await.is_ok()
    }

    fn terminate(&self) {
        let sent = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|sent| sent.success()), "no program to stop");
    }

    async fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the program to end", async || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        })
        .await;
        status.expect("it has ended")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.gate);
        let _ = fs::remove_file(self.gate.with_extension("here"));
    }
}

/// The server has no open requests, so the process waits for its worker alone.
async fn shutdown_finishes_the_active_run(program: &str) {
    let url = shared_server().await.url(&uuid::Uuid::new_v4().simple().to_string());
    let store = patient_store(&url).await;
    let order = || store.lock(Key::path_param("id", "7"));
    let mut program = Program::start(program, &url).await;

    let busy = order().acquire().await.expect("nobody has it");
    let accepted = request(program.addr, "POST", "/orders/7/refund").send().await.expect(202);
    let id = accepted.field("location").rsplit('/').next().expect("an id").to_owned();
    let id = JobId::parse(&id).expect("an id");
    let state =
        async || store.deferred_jobs().get(&id).await.expect("it is there").map(|job| job.state);
    busy.release().await;
    // A claimed job whose handler has not started returns to its queue on shutdown.
    let here = program.gate.with_extension("here");
    eventually("the refund to run", async || here.exists()).await;

    program.terminate();
    eventually("the server to stop", async || !program.listens().await).await;
    fs::write(&program.gate, "").expect("a file");
    let status = program.ended().await;
    assert_eq!(status.code(), Some(0), "{status}");
    assert_eq!(state().await, Some(JobState::Done));
    order().acquire().await.expect("it was given back before the process ended").release().await;
}

#[tokio::test]
async fn axum_finishes_the_active_run_on_sigterm() {
    shutdown_finishes_the_active_run(env!("CARGO_BIN_EXE_minimal-axum")).await;
}

#[tokio::test]
async fn actix_web_finishes_the_active_run_on_sigterm() {
    shutdown_finishes_the_active_run(env!("CARGO_BIN_EXE_minimal-actix-web")).await;
}
