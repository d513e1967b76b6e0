//! Search for paths of a `Location` that the application does not serve, when a server starts.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::timeout;

use super::status_paths::DEFAULT_PATH;
use crate::{
    defer::wiring_registry::{ProcessWiring, with_process_wiring},
    gate::StatusProbe,
    key::Key,
    store::JobId,
};

/// Time for one answer. It is that of the application's own middleware: the status routes answer at
/// once.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the paths that layers of this process name and that answer 404 without the status
/// routes.
///
/// `send` sends a GET for a target through the application, with the probe as an extension, and
/// returns the status. Any other status tells nothing: an authentication or another route has
/// answered. Without status routes in this process, another one may serve them, and nothing is
/// sent.
pub(crate) async fn find_dead_status_paths<Fut>(
    send: impl Fn(String, StatusProbe) -> Fut,
) -> Vec<String>
where
    Fut: Future<Output = Option<u16>>,
{
    let mut dead = Vec::new();
    for (path, served) in with_process_wiring(|wiring| named_paths(wiring)) {
        let mut is_dead = true;
        for path in served {
            let probe = StatusProbe::default();
            let target = format!("{path}/{}", JobId::new(&Key::custom("status")));
            let status = timeout(PROBE_TIMEOUT, send(target, probe.clone())).await;
            is_dead = status == Ok(Some(404)) && !probe.is_found();
            if !is_dead {
                break;
            }
        }
        if is_dead {
            dead.push(path);
        }
    }
    dead
}

/// Returns the paths that layers name whatever their store is, each with those under which the
/// application may serve it.
fn named_paths(wiring: &ProcessWiring) -> BTreeMap<String, Vec<String>> {
    let mounts = wiring.status_mounts();
    let mounted: Vec<_> = mounts.iter().filter_map(|mount| mount.client_path()).collect();
    let unconfigured = match &*mounted {
        [] => Some(DEFAULT_PATH),
        [first, others @ ..] => Some(*first).filter(|_| others.iter().all(|other| other == first)),
    };
    let mut paths = BTreeMap::new();
    for layer in wiring.layer_status_paths().filter(|_| !mounts.is_empty()) {
        if let Some(path) = layer {
            // A proxy may remove a prefix.
            let starts = path.match_indices('/').filter_map(|(start, _)| path.get(start..));
            paths.insert(path.to_owned(), starts.chain([""]).map(str::to_owned).collect());
        } else if let Some(path) = unconfigured {
            paths.entry(path.to_owned()).or_insert_with(|| vec![path.to_owned()]);
        }
    }
    paths
}
