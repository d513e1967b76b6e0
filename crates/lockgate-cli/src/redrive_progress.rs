//! Progress of a redrive of all dead letters.

use std::{convert::Infallible, time::Duration};

use indicatif::ProgressBar;

use crate::{cli_error::CliError, command_context::CommandContext};

const TEMPLATE: &str = "{pos} of {len} redriven {wide_bar} {eta} left";

/// Time between two updates of the bar. A count takes up to one call for each shard.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Runs a redrive behind a bar and returns the number of redriven letters. The store counts the
/// dead letters, so the bar is right although it is only told now and then.
pub(crate) async fn redrive_behind_bar<E: Into<CliError>>(
    context: &CommandContext<'_>,
    count_dead: impl AsyncFn() -> Result<u64, lockgate::Error>,
    redrive: impl Future<Output = Result<u64, E>>,
) -> Result<u64, CliError> {
    let bar = context.progress_bar(0, TEMPLATE);
    if bar.is_hidden() {
        return redrive.await.map_err(Into::into);
    }
    bar.set_length(count_dead().await?);
    let count = tokio::select! {
        count = redrive => count,
        never = follow_redrive(&bar, count_dead) => match never {},
    };
    bar.finish_and_clear();
    count.map_err(Into::into)
}

/// Updates the bar until it is dropped. A failed count leaves the bar as it is.
async fn follow_redrive(
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
