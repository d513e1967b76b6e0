//! `lockgate-fsck [STORE_URL] [--repair]`: [`Store::check`] for operators.
//!
//! A package of its own, so that `cargo install` needs no checkout, and the library needs neither
//! an argument parser nor a crypto provider. In a checkout, `cargo xtask fsck` starts it.

#![warn(
    clippy::cast_possible_wrap,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unreachable,
    clippy::unwrap_used
)]

use std::{
    error::Error as _,
    fmt::Display,
    io::{self, Write as _},
    process::ExitCode,
    time::Duration,
};

use clap::Parser;
use lockgate::{CheckReport, Error, Store};

/// The store could not be checked. clap uses the same code for errors in the arguments.
const EXIT_CHECK_FAILED: u8 = 2;

/// The namespace is empty. Not 0, since a check with a wrong URL would then succeed every time
/// without being noticed.
const EXIT_EMPTY_NAMESPACE: u8 = 3;

/// Timeout of a call. Longer than in a service, since a busy server may be slow for a moment and no
/// request depends on this program.
const STORE_DEADLINE: Duration = Duration::from_secs(10);

const EXIT_CODES: &str = "\
Exit codes:
  0  nothing is wrong, or all of it was repaired
  1  something is left
  2  the store could not be checked
  3  the namespace is empty, so its name may be mistyped";

/// Checks one namespace of a store for deferred requests in no state or in two, keys without an
/// owner or an expiry, and wrong counts. The service may run meanwhile.
#[derive(Debug, Parser)]
#[command(name = "lockgate-fsck", version, after_help = EXIT_CODES)]
struct FsckArgs {
    /// URL of the service's store with its namespace, such as redis://127.0.0.1/?ns=shop
    ///
    /// Prefer the variable for a URL with a password: other users of the machine can read the
    /// arguments of a process, and the shell keeps them in its history. `rediss://` trusts the
    /// certificates that the system trusts, or those in SSL_CERT_FILE.
    #[arg(value_name = "STORE_URL", env = "LOCKGATE_STORE", hide_env_values = true)]
    store_url: String,
    /// Repair everything that has a known repair; no request that can still run is lost
    #[arg(long)]
    repair: bool,
}

fn main() -> ExitCode {
    // Fails only if a provider is installed already, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let args = match FsckArgs::try_parse() {
        Ok(args) => args,
        // clap quotes an unexpected argument, and a second URL may hold a password.
        Err(error) if error.use_stderr() => {
            print_error("expected one store URL, as argument or in LOCKGATE_STORE; see `--help`");
            return ExitCode::from(EXIT_CHECK_FAILED);
        }
        Err(help) => help.exit(),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            print_error(error);
            return ExitCode::from(EXIT_CHECK_FAILED);
        }
    };
    match runtime.block_on(check_store(&args)) {
        Ok(report) => {
            // The reader of a pipe may have ended. The exit code still reports the result, which a
            // panic would hide.
            let _ = writeln!(io::stdout(), "{report}");
            if report.is_namespace_empty() {
                print_error(
                    "the namespace is empty; is it the URL of the service, with its `?ns=`?",
                );
                return ExitCode::from(EXIT_EMPTY_NAMESPACE);
            }
            ExitCode::from(u8::from(!report.is_repaired()))
        }
        Err(error) => {
            print_error(describe_error(&error));
            ExitCode::from(EXIT_CHECK_FAILED)
        }
    }
}

/// Writes a line to the standard error, which may be closed.
fn print_error(message: impl Display) {
    let _ = writeln!(io::stderr(), "{message}");
}

/// Returns the text of an error with its cause, which the text of some kinds contains already.
fn describe_error(error: &Error) -> String {
    let text = error.to_string();
    match error.source().map(ToString::to_string) {
        Some(cause) if !text.contains(&cause) => format!("{text}: {cause}"),
        _ => text,
    }
}

async fn check_store(args: &FsckArgs) -> Result<CheckReport, Error> {
    let builder = Store::builder(&args.store_url).call_timeout(STORE_DEADLINE);
    // A check of a mistyped namespace must not create it, and a repair needs no fences.
    let store = builder.writes_on_connect(false).connect().await?;
    // Reports an unavailable store at once.
    store.ping().await?;
    store.check().repair(args.repair).run().await
}
