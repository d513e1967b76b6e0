//! `StateGraph`: breadth-first exploration of a scenario's states.

use std::{
    collections::{HashSet, VecDeque},
    fmt,
};

use super::{ClientOperation, ModelScenario, ScenarioRun};
use crate::store::memory::PlantedFault;

/// Shortest path to a state, as indexes into the scenario's operations.
type OperationPath = Vec<usize>;

/// Explored part of the state graph.
pub(super) struct StateGraph {
    operations: Vec<ClientOperation>,
    paths: Vec<OperationPath>,
    /// For each state, the operations that leave it unchanged; they let no time pass.
    idle_operations: Vec<OperationPath>,
    /// Number of states in which all operations were tried.
    expanded_states: usize,
    step_count: usize,
}

impl StateGraph {
    /// Returns a graph with the initial state only.
    fn new(operations: &[ClientOperation]) -> Self {
        let (operations, paths) = (operations.to_vec(), vec![OperationPath::new()]);
        Self { operations, paths, idle_operations: Vec::new(), expanded_states: 0, step_count: 0 }
    }

    pub(super) fn state_count(&self) -> usize {
        self.paths.len()
    }

    /// Returns true if every reachable state was expanded.
    pub(super) fn is_complete(&self) -> bool {
        self.expanded_states == self.paths.len()
    }

    /// Returns the paths to all states with idle operations, and these operations.
    #[cfg(feature = "redis")]
    pub(super) fn idle_paths(&self) -> Vec<(Vec<ClientOperation>, Vec<ClientOperation>)> {
        let pairs =
            self.paths.iter().zip(&self.idle_operations).filter(|(_, idle)| !idle.is_empty());
        pairs.map(|(path, idle)| (self.resolve_path(path), self.resolve_path(idle))).collect()
    }

    #[cfg(feature = "redis")]
    fn resolve_path(&self, path: &[usize]) -> Vec<ClientOperation> {
        path.iter().map(|index| self.operations[*index].clone()).collect()
    }

    /// Returns about `max_paths` of the paths to leaves, each with the length of the prefix that an
    /// earlier path covers.
    #[cfg(feature = "redis")]
    pub(super) fn leaf_paths(&self, max_paths: usize) -> Vec<(Vec<ClientOperation>, usize)> {
        let inner: HashSet<&[usize]> =
            self.paths.iter().filter_map(|path| Some(path.split_last()?.1)).collect();
        let leaves = self.paths.iter().filter(|path| !inner.contains(path.as_slice()));
        let leaves: Vec<_> = leaves.collect();
        let mut known = HashSet::new();
        let selected = leaves.iter().step_by((leaves.len() / max_paths).max(1));
        selected
            .map(|path| {
                let known_length =
                    (1..=path.len()).take_while(|length| known.contains(&path[..*length])).count();
                known.extend((1..=path.len()).map(|length| &path[..length]));
                (self.resolve_path(path), known_length)
            })
            .collect()
    }
}

impl fmt::Display for StateGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let depth = self.paths.last().map_or(0, Vec::len);
        let (states, expanded, steps) = (self.state_count(), self.expanded_states, self.step_count);
        let coverage = if self.is_complete() { "whole" } else { "in part" };
        write!(
            f,
            "{states} states, {expanded} with all their steps, {steps} steps, {depth} deep: {coverage}"
        )
    }
}

/// Prints the path to an invalid state on a panic.
struct PanicPathPrinter<'a>(&'a [ClientOperation], &'a [usize]);

impl Drop for PanicPathPrinter<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let path: Vec<_> = self.1.iter().map(|index| &self.0[*index]).collect();
            eprintln!("after {path:#?}");
        }
    }
}

/// Explores and checks up to `max_states` states.
pub(super) async fn explore_and_check(
    scenario: &ModelScenario,
    max_states: usize,
    fault: Option<PlantedFault>,
) -> StateGraph {
    explore_breadth_first(scenario, max_states, fault, true).await
}

/// Like `explore_and_check`, without the checks, which another test makes.
#[cfg(feature = "redis")]
pub(super) async fn explore_unchecked(scenario: &ModelScenario, max_states: usize) -> StateGraph {
    explore_breadth_first(scenario, max_states, None, false).await
}

async fn explore_breadth_first(
    scenario: &ModelScenario,
    max_states: usize,
    fault: Option<PlantedFault>,
    is_checked: bool,
) -> StateGraph {
    let operations = &scenario.operations;
    let resolve =
        |path: &[usize]| Vec::from_iter(path.iter().map(|index| operations[*index].clone()));
    let initial = ScenarioRun::replay(scenario, &[], fault).await.state_snapshot();
    let mut known = HashSet::from([initial.clone()]);
    let mut pending = VecDeque::from([(OperationPath::new(), initial)]);
    let mut graph = StateGraph::new(operations);
    while let Some((path, snapshot)) = pending.pop_front() {
        if graph.state_count() >= max_states {
            break;
        }
        let (prefix, mut idle) = (resolve(&path), OperationPath::new());
        for index in 0..operations.len() {
            let next: OperationPath = path.iter().copied().chain([index]).collect();
            let _path_printer = PanicPathPrinter(operations, &next);
            let mut run = ScenarioRun::replay(scenario, &prefix, fault).await;
            if !run.apply(&operations[index]).await {
                continue;
            }
            graph.step_count += 1;
            if is_checked {
                run.check_state().await;
            }
            let next_snapshot = run.state_snapshot();
            if next_snapshot == snapshot
                && !matches!(operations[index], ClientOperation::AdvanceTime(_))
            {
                idle.push(index);
            }
            if known.insert(next_snapshot.clone()) {
                if is_checked {
                    run.drain_to_end(false).await;
                    ScenarioRun::replay(scenario, &resolve(&next), fault)
                        .await
                        .drain_to_end(true)
                        .await;
                }
                pending.push_back((next.clone(), next_snapshot));
                graph.paths.push(next.clone());
            }
        }
        // States are expanded in the order in which they were found.
        graph.idle_operations.push(idle);
        graph.expanded_states += 1;
    }
    graph
}
