//! Errors in the arguments, without the passwords that they may contain.

use std::{env, process::ExitCode};

use crate::{exit_status::ExitStatus, output::print_error};

/// Prints the help that was asked for, or the error.
pub(crate) fn report(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // The reader of a pipe may have ended, which is no error.
        let _ = error.print();
        return ExitStatus::Done.into();
    }
    print_error(redact_urls(&error.to_string(), env::args()).trim_end());
    ExitStatus::Failed.into()
}

/// Replaces each argument with a URL in it: clap quotes arguments that it does not expect, and a
/// store's URL may contain a password.
fn redact_urls(text: &str, arguments: impl Iterator<Item = String>) -> String {
    let urls = arguments.filter(|argument| argument.contains("://"));
    let values = urls.map(|argument| match argument.split_once('=') {
        Some((option, value)) if option.starts_with('-') => value.to_owned(),
        _ => argument,
    });
    values.fold(text.to_owned(), |text, value| text.replace(&value, "<URL>"))
}

#[cfg(test)]
mod tests {
    use super::redact_urls;

    #[test]
    fn urls_are_redacted_as_arguments_and_as_values_of_options() {
        let arguments = ["lockgate", "redis://:secret@a/", "--repair=redis://:hidden@b/"];
        let text = "unexpected 'redis://:secret@a/' and 'redis://:hidden@b/' found";
        let redacted = redact_urls(text, arguments.map(str::to_owned).into_iter());
        assert_eq!(redacted, "unexpected '<URL>' and '<URL>' found");
    }
}
