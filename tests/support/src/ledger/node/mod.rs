//! Process of the fleet: routes that lock, wait and defer, and a worker for them, in either
//! framework.

mod actix;
mod axum;
mod node_setup;
mod recording_handler;

use std::{io::Write as _, net::SocketAddr, sync::Arc, time::Duration};

use lockgate::{Keyring, Store};
use tokio::signal::unix::{SignalKind, signal};

pub use self::node_setup::NodeSetup;
use self::recording_handler::{HandlerContext, HandlerInstructions, RecordingHandler};
use crate::{
    fleet::{
        ProcessArgs,
        event_log::EventLog,
        process_control::{ProcessControl, print_line},
        stall_monitor,
    },
    site::WebFramework,
};

/// Delay of delayed jobs.
pub const RUN_DELAY: Duration = Duration::from_millis(800);

/// Deadline for the start of expiring jobs.
pub const RUN_EXPIRY: Duration = Duration::from_millis(1500);

/// Far above the load: storage limits have their own tests.
const MAX_JOBS: u64 = 64 << 20;
const MAX_BYTES: u64 = 64 << 32;

/// Window of the rate of a limited worker.
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// Longest wait for a lock on the routes that wait.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Serves until SIGTERM, drains and ends; or ends at once with its input.
///
/// # Panics
///
/// If a setting is invalid or the log cannot be written.
pub fn run_node(args: &ProcessArgs) {
    let setup: &NodeSetup = &serde_json::from_str(&args.setup).expect("it is a setup");
    let panics = args.log_path.with_extension("panics");
    // Instructed panics are written to a file.
    std::panic::set_hook(Box::new(move |info| {
        let mut file = std::fs::OpenOptions::new();
        if let Ok(mut file) = file.create(true).append(true).open(&panics) {
            let _ = writeln!(file, "{info}");
        }
    }));
    let trace = args.log_path.with_extension("trace");
    let trace = std::fs::File::create(trace).expect("the log can be made");
    let log_settings = std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned());
    let log_settings = tracing_subscriber::fmt().with_env_filter(log_settings).with_ansi(false);
    log_settings.with_writer(std::sync::Mutex::new(trace)).init();
    let log = Arc::new(EventLog::open(&args.log_path).expect("the log can be made"));
    stall_monitor::record_own_stalls(Arc::clone(&log));
    let handler = Arc::new(RecordingHandler::new(log, &setup.registers_url));
    match setup.framework {
        WebFramework::Axum => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            let runtime = builder.worker_threads(2).enable_all().build().expect("a runtime");
            runtime.block_on(async {
                ProcessControl::from_stdin(|_| ());
                axum::serve(setup, handler, connect_store(args, setup).await).await;
            });
            runtime.shutdown_timeout(Duration::from_millis(100));
        }
        WebFramework::Actix => actix_web::rt::System::new().block_on(async {
            ProcessControl::from_stdin(|_| ());
            actix::serve(setup, handler, connect_store(args, setup).await).await;
        }),
    }
    std::process::exit(0);
}

async fn connect_store(args: &ProcessArgs, setup: &NodeSetup) -> Store {
    let builder = Store::builder(&args.url).call_timeout(setup.call_timeout);
    let store = builder.connect().await.expect("the URL is right");
    let Some((sealing_key, other_keys)) = setup.sealing_key_numbers.split_first() else {
        return store;
    };
    let id = |key: &u8| format!("key-{key}");
    let ring = Keyring::new(&id(sealing_key), [*sealing_key; 32]);
    store.with_keyring(
        other_keys.iter().fold(ring, |ring, key| ring.with_decryption_key(&id(key), [*key; 32])),
    )
}

fn print_address(address: SocketAddr) {
    print_line(&address.to_string());
}

async fn wait_for_sigterm() {
    let mut term = signal(SignalKind::terminate()).expect("signals can be had");
    term.recv().await;
}
