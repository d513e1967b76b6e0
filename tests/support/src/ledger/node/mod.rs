//! A process of the fleet: routes that lock, wait and defer, and a worker for them, in either framework.

mod actix;
mod axum;
mod desk;
mod setup;

use std::{io::Write as _, net::SocketAddr, sync::Arc, time::Duration};

use lockgate::{Keyring, Store};
use tokio::signal::unix::{SignalKind, signal};

use self::desk::{Desk, Facts, Wish};
pub use self::setup::Setup;
use crate::{
    fleet::{
        Job,
        log::Log,
        orders::{Orders, say},
        stall,
    },
    site::Framework,
};

/// What is delayed does not run before.
pub const DELAY: Duration = Duration::from_millis(800);

/// What has to begin soon is expired after it.
pub const SOON: Duration = Duration::from_millis(1500);

/// Far more than there are: caps have tests of their own.
const JOBS: u64 = 64 << 20;
const BYTES: u64 = 64 << 32;

/// What the rate of a limited worker counts by.
const SECOND: Duration = Duration::from_secs(1);

/// How long a request waits for its lock, where it does.
const WAIT: Duration = Duration::from_secs(10);

/// Serves until SIGTERM, drains, and ends; or ends at once with its input.
///
/// # Panics
///
/// If a setting is wrong or the log can't be written.
pub fn node(job: &Job) {
    let setup: &Setup = &serde_json::from_str(&job.setup).expect("it is a setup");
    let panics = job.log.with_extension("panics");
    // Those that are asked for are no news.
    std::panic::set_hook(Box::new(move |info| {
        let mut file = std::fs::OpenOptions::new();
        if let Ok(mut file) = file.create(true).append(true).open(&panics) {
            let _ = writeln!(file, "{info}");
        }
    }));
    let trace = job.log.with_extension("trace");
    let trace = std::fs::File::create(trace).expect("the log can be made");
    let told = std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned());
    let told = tracing_subscriber::fmt().with_env_filter(told).with_ansi(false);
    told.with_writer(std::sync::Mutex::new(trace)).init();
    let log = Arc::new(Log::open(&job.log).expect("the log can be made"));
    stall::note_own(Arc::clone(&log));
    let desk = Arc::new(Desk::new(log, &setup.registers));
    match setup.framework {
        Framework::Axum => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            let runtime = builder.worker_threads(2).enable_all().build().expect("a runtime");
            runtime.block_on(async {
                Orders::follow(|_| ());
                axum::serve(setup, desk, store(job, setup).await).await;
            });
            runtime.shutdown_timeout(Duration::from_millis(100));
        }
        Framework::Actix => actix_web::rt::System::new().block_on(async {
            Orders::follow(|_| ());
            actix::serve(setup, desk, store(job, setup).await).await;
        }),
    }
    std::process::exit(0);
}

async fn store(job: &Job, setup: &Setup) -> Store {
    let builder = Store::builder(&job.url).call_timeout(setup.deadline);
    let store = builder.connect().await.expect("the URL is right");
    let Some((seals, others)) = setup.keys.split_first() else { return store };
    let id = |key: &u8| format!("key-{key}");
    let ring = Keyring::new(&id(seals), [*seals; 32]);
    store.with_keyring(
        others.iter().fold(ring, |ring, key| ring.with_decryption_key(&id(key), [*key; 32])),
    )
}

fn listens(at: SocketAddr) {
    say(&at.to_string());
}

async fn terminated() {
    let mut term = signal(SignalKind::terminate()).expect("signals can be had");
    term.recv().await;
}
