//! `lockgate-fsck [<store-url>] [--repair]`: [`Store::check`] for operators.
//!
//! A program of the crate and not of its repository alone: those who run a service have the crate, and no checkout.
//! `cargo xtask fsck` starts it.

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
    fmt::Display,
    io::{self, Write as _},
    process::ExitCode,
    time::Duration,
};

use lockgate::{CheckReport, Error, Store};

const USAGE: &str = "\
usage: lockgate-fsck [<store-url>] [--repair]

  Looks through one namespace for deferred requests that are in no state or in two, for keys without an owner or an
  end, and for numbers that are wrong; the service may go on meanwhile. The URL is that of the service, with its
  namespace: redis://127.0.0.1/?ns=shop
  Without one it is taken from LOCKGATE_STORE: an argument is read by whoever may list the processes, and kept in the
  shell's history, with the password that is in it.
  rediss:// needs the program built with the feature fsck-tls; it trusts whom the system trusts, or SSL_CERT_FILE.
  --repair   mends what it understands, and loses no request that can still run

  Exit code: 0 nothing is wrong, or all of it was mended; 1 something is left; 2 it could not look; 3 nobody has
  used this namespace, so its name may be mistyped.";

/// The variable with the store's URL.
const STORE: &str = "LOCKGATE_STORE";

/// What it could not look at.
const UNABLE: u8 = 2;

/// There was nothing to look at. Not 0: a check that always succeeds since its URL is wrong would never be noticed.
const NOTHING: u8 = 3;

/// A server that is busy is slow for a moment; nobody waits for this.
const DEADLINE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    // A program chooses for itself what a library leaves to the application. One that is there already is as good.
    #[cfg(feature = "fsck-tls")]
    let _ = rustls::crypto::ring::default_provider().install_default();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (flags, urls): (Vec<&str>, Vec<&str>) =
        args.iter().map(String::as_str).partition(|arg| arg.starts_with('-'));
    if flags.iter().any(|flag| matches!(*flag, "-h" | "--help")) {
        // Whoever has read enough has closed the pipe.
        let _ = writeln!(io::stdout(), "{USAGE}");
        return ExitCode::SUCCESS;
    }
    let known = flags.iter().all(|flag| *flag == "--repair");
    let url = match urls.as_slice() {
        [url] => Some((*url).to_owned()),
        [] => std::env::var(STORE).ok(),
        _ => None,
    };
    let (Some(url), true) = (url, known) else {
        complain(USAGE);
        return ExitCode::from(UNABLE);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(look(&url, !flags.is_empty())),
        Err(error) => {
            complain(error);
            return ExitCode::from(UNABLE);
        }
    };
    match outcome {
        Ok(report) => {
            // As the help: what was found is told by the exit code, too, which is not to be that of a panic.
            let _ = writeln!(io::stdout(), "{report}");
            if report.is_of_nothing() {
                complain(
                    "nobody has used this namespace; is it the URL of the service, with its `?ns=`?",
                );
                return ExitCode::from(NOTHING);
            }
            ExitCode::from(u8::from(!report.is_mended()))
        }
        Err(error) => {
            let source = std::error::Error::source(&error);
            let more = source.map(|source| format!(": {source}")).unwrap_or_default();
            complain(format_args!("{error}{more}"));
            if cfg!(not(feature = "fsck-tls")) && is_by_tls(&url) {
                complain("for TLS, build this program with the feature fsck-tls");
            }
            ExitCode::from(UNABLE)
        }
    }
}

/// Whether or not anybody reads it.
fn complain(what: impl Display) {
    let _ = writeln!(io::stderr(), "{what}");
}

/// As the schemes of [`Store::connect`] are spelt.
fn is_by_tls(url: &str) -> bool {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    scheme.split('+').any(|part| matches!(part, "rediss" | "valkeys"))
}

async fn look(url: &str, repair: bool) -> Result<CheckReport, Error> {
    let store = Store::builder(url).deadline(DEADLINE).connect().await?;
    // One that is away is told as such, and at once.
    store.ping().await?;
    store.check().repair(repair).run().await
}
