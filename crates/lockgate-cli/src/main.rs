//! `lockgate`: what a store contains, and actions on it, for operators.
//!
//! A package of its own, so that `cargo install` needs no checkout, and the library needs neither
//! an argument parser nor a crypto provider. All commands use the inspection API of the library.

#![warn(
    clippy::cast_possible_wrap,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unreachable,
    clippy::unwrap_used
)]

mod arguments;
mod cli_error;
mod command_context;
mod commands;
mod confirmation;
mod control_characters;
mod dead_letter_progress;
mod exit_status;
mod output;
mod paged_rows;
mod readable_time;
mod run_command;
mod store_connection;
mod text_table;
mod usage_error;
mod watch;

use std::process::ExitCode;

use clap::Parser as _;

use self::{arguments::Arguments, exit_status::ExitStatus, output::print_error};

fn main() -> ExitCode {
    // Fails only if a provider is installed already, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage_error::report(&error),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            print_error(error);
            return ExitStatus::Failed.into();
        }
    };
    match runtime.block_on(watch::run_command(&arguments)) {
        Ok(status) => status.into(),
        Err(error) => {
            print_error(&error);
            error.exit_status().into()
        }
    }
}
