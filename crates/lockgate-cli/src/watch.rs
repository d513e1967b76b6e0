//! `--watch`: the same command again and again.

use std::{io::IsTerminal as _, time::Duration};

use crate::{
    arguments::Arguments,
    cli_error::CliError,
    exit_status::ExitStatus,
    output::{Output, print_line},
    run_command, store_connection,
};

/// Moves the cursor to the upper left corner and erases the screen.
const CLEAR_SCREEN: &str = "\u{1b}[H\u{1b}[2J";

/// Connects once and runs the command once, or with `--watch` until the program is interrupted.
pub(crate) async fn run_command(arguments: &Arguments) -> Result<ExitStatus, CliError> {
    if let Some(status) = run_command::run_without_store(arguments) {
        return Ok(status);
    }
    let Some(seconds) = arguments.watch else {
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
        if arguments.output() == Output::Text && std::io::stdout().is_terminal() {
            print_line(CLEAR_SCREEN);
        }
        run_command::run(&store, arguments).await?;
    }
}
