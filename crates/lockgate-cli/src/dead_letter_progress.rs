//! Progress of an action on all dead letters.

use std::{convert::Infallible, time::Duration};

use indicatif::ProgressBar;

use crate::{cli_error::CliError, command_context::CommandContext};

/// Time between two updates of the bar. A count takes up to one call for each shard.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Runs an action that ends dead letters behind a bar and returns their number. The store counts
/// the rest, so the bar is right although it is only told now and then. `verb` is `redriven` or
/// `purged`.
pub(crate) async fn run_behind_bar<E: Into<CliError>>(
    context: &CommandContext<'_>,
    verb: &str,
    count_dead: impl AsyncFn() -> Result<u64, lockgate::Error>,
    action: impl Future<Output = Result<u64, E>>,
) -> Result<u64, CliError> {
    let template = format!("{{pos}} of {{len}} dead letters {verb} {{wide_bar}} {{eta}} left");
    let bar = context.progress_bar(0, &template);
    if bar.is_hidden() {
        return action.await.map_err(Into::into);
    }
    bar.set_length(count_dead().await?);
    let count = tokio::select! {
        count = action => count,
        never = follow_count(&bar, count_dead) => match never {},
    };
    bar.finish_and_clear();
    count.map_err(Into::into)
}

/// Updates the bar until it is dropped. A failed count leaves the bar as it is.
async fn follow_count(
    bar: &ProgressBar,
    count_dead: impl AsyncFn() -> Result<u64, lockgate::Error>,
) -> Infallible {
    loop {
        tokio::time::sleep(REFRESH_INTERVAL).await;
        if let Ok(dead) = count_dead().await {
            bar.set_position(bar.length().unwrap_or_default().saturating_sub(dead));
        }
    }
}
