//! A process of the fleet: routes that lock, wait and defer, and a worker for them, in either framework.

mod actix;
mod axum;
mod desk;
mod setup;

use std::{
    io::{BufRead as _, Write as _},
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use lockgate::{Keyring, Store};
use tokio::{
    runtime::Handle,
    signal::unix::{SignalKind, signal},
};

use self::desk::{Desk, Facts, Wish};
pub use self::setup::Setup;
use crate::{gauge, site::Framework};

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
pub fn node(setup: &Setup) {
    let runtime: Arc<OnceLock<Handle>> = Arc::default();
    let its = Arc::clone(&runtime);
    // A thread of its own: the end of the input is the end of the process, whatever its runtime does.
    std::thread::spawn(move || {
        for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
            if let Some(runtime) = its.get() {
                gauge::tell(runtime);
            }
        }
        std::process::exit(0);
    });
    let known = || _ = runtime.set(Handle::current());
    let panics = setup.log.with_extension("panics");
    // Those that are asked for are no news.
    std::panic::set_hook(Box::new(move |info| {
        let mut file = std::fs::OpenOptions::new();
        if let Ok(mut file) = file.create(true).append(true).open(&panics) {
            let _ = writeln!(file, "{info}");
        }
    }));
    let trace = setup.log.with_extension("trace");
    let trace = std::fs::File::create(trace).expect("the log can be made");
    let told = std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned());
    let told = tracing_subscriber::fmt().with_env_filter(told).with_ansi(false);
    told.with_writer(std::sync::Mutex::new(trace)).init();
    let desk = Arc::new(Desk::open(setup));
    let its_stalls = Arc::clone(&desk);
    std::thread::spawn(move || its_stalls.note_stalls());
    match setup.framework {
        Framework::Axum => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            let runtime = builder.worker_threads(2).enable_all().build().expect("a runtime");
            runtime.block_on(async {
                known();
                axum::serve(setup, desk, store(setup).await).await;
            });
            runtime.shutdown_timeout(Duration::from_millis(100));
        }
        Framework::Actix => actix_web::rt::System::new().block_on(async {
            known();
            actix::serve(setup, desk, store(setup).await).await;
        }),
    }
    std::process::exit(0);
}

async fn store(setup: &Setup) -> Store {
    let builder = Store::builder(&setup.url).deadline(setup.deadline);
    let store = builder.connect().await.expect("the URL is right");
    let Some((seals, others)) = setup.keys.split_first() else { return store };
    let id = |key: &u8| format!("key-{key}");
    let ring = Keyring::new(&id(seals), [*seals; 32]);
    store.sealed_with(others.iter().fold(ring, |ring, key| ring.opens(&id(key), [*key; 32])))
}

fn listens(at: SocketAddr) {
    println!("{at}");
}

async fn terminated() {
    let mut term = signal(SignalKind::terminate()).expect("signals can be had");
    term.recv().await;
}
