//! Connection to the store of the service.

use std::time::Duration;

use lockgate::Store;

use crate::{arguments::Arguments, cli_error::CliError};

/// Timeout of a call. Longer than in a service, since a busy server may be slow for a moment and no
/// request depends on this program.
const STORE_DEADLINE: Duration = Duration::from_secs(10);

/// Connects, and reports an unavailable store at once.
pub(crate) async fn connect(arguments: &Arguments) -> Result<Store, CliError> {
    let Some(url) = &arguments.store else {
        return Err(CliError::usage(
            "no store: set LOCKGATE_STORE, or pass --store redis://HOST/?ns=NAMESPACE",
        ));
    };
    let builder = Store::builder(url).call_timeout(STORE_DEADLINE);
    // A look at a mistyped namespace must not create it, and nothing here needs a fence at once.
    let store = builder.writes_on_connect(false).connect().await?;
    store.ping().await?;
    Ok(store)
}
