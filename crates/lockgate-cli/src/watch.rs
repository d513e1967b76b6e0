//! `--watch`: the same command again and again.

use std::{io::IsTerminal as _, time::Duration};

use crate::{
    arguments::{Arguments, Command},
    cli_error::CliError,
    exit_status::ExitStatus,
    output::{Output, clear_screen, is_output_closed, print_error},
    run_command, store_connection,
};

/// Seconds between two screens of `top`, as of `--watch` without a value.
const TOP_SECONDS: u32 = 2;

/// Connects once and runs the command once, or with `--watch` until the program is interrupted or
/// its output has no reader any more.
pub(crate) async fn run_command(arguments: &Arguments) -> Result<ExitStatus, CliError> {
    if let Some(status) = run_command::run_without_store(arguments) {
        return Ok(status);
    }
    let is_screen = arguments.output() == Output::Text && std::io::stdout().is_terminal();
    let is_live_top = is_screen && matches!(arguments.command, Command::Top);
    let Some(seconds) = arguments.watch.or(is_live_top.then_some(TOP_SECONDS)) else {
        let store = store_connection::connect(arguments).await?;
        return run_command::run(&store, arguments).await;
    };
    if !arguments.command.is_read_only() {
        return Err(CliError::usage("--watch repeats commands that change nothing only"));
    }
    let store = store_connection::connect(arguments).await?;
    let mut interval = tokio::time::interval(Duration::from_secs(seconds.into()));
    loop {
        interval.tick().await;
        if is_screen {
            clear_screen();
        }
        // An outage is what one watches for, so it does not end the watch.
        if let Err(error) = run_command::run(&store, arguments).await {
            print_error(error);
        }
        if is_output_closed() {
            return Ok(ExitStatus::Done);
        }
    }
}
