//! Breadth first.

use std::{
    collections::{HashSet, VecDeque},
    fmt,
};

use super::{ClientOperation, ModelScenario, ScenarioRun};
use crate::store::memory::PlantedFault;

/// The moves that lead to a state first, as indexes into the alphabet.
type OperationPath = Vec<usize>;

/// What has been explored.
pub(super) struct StateGraph {
    operations: Vec<ClientOperation>,
    paths: Vec<OperationPath>,
    /// Of each state, the moves that leave it is; they let no time pass.
    idle_operations: Vec<OperationPath>,
    /// States of which all steps were tried.
    expanded_states: usize,
    step_count: usize,
}

impl StateGraph {
    /// The beginning alone.
    fn new(moves: &[ClientOperation]) -> Self {
        let (moves, paths) = (moves.to_vec(), vec![OperationPath::new()]);
        Self {
            operations: moves,
            paths,
            idle_operations: Vec::new(),
            expanded_states: 0,
            step_count: 0,
        }
    }

    pub(super) fn state_count(&self) -> usize {
        self.paths.len()
    }

    /// There is nothing else to be reached.
    pub(super) fn is_complete(&self) -> bool {
        self.expanded_states == self.paths.len()
    }

    /// The ways to all that some moves leave as they are, and these.
    #[cfg(feature = "redis")]
    pub(super) fn idle_paths(&self) -> Vec<(Vec<ClientOperation>, Vec<ClientOperation>)> {
        let both =
            self.paths.iter().zip(&self.idle_operations).filter(|(_, idle)| !idle.is_empty());
        both.map(|(path, idle)| (self.resolve_path(path), self.resolve_path(idle))).collect()
    }

    #[cfg(feature = "redis")]
    fn resolve_path(&self, path: &[usize]) -> Vec<ClientOperation> {
        path.iter().map(|n| self.operations[*n].clone()).collect()
    }

    /// About so many of the ways to states that lead to no new one; of each, how many of its first states are on a way
    /// before it.
    #[cfg(feature = "redis")]
    pub(super) fn leaf_paths(&self, most: usize) -> Vec<(Vec<ClientOperation>, usize)> {
        let inner: HashSet<&[usize]> =
            self.paths.iter().filter_map(|path| Some(path.split_last()?.1)).collect();
        let leaves = self.paths.iter().filter(|path| !inner.contains(path.as_slice()));
        let leaves: Vec<_> = leaves.collect();
        let mut seen = HashSet::new();
        let some = leaves.iter().step_by((leaves.len() / most).max(1));
        some.map(|path| {
            let known = (1..=path.len()).take_while(|n| seen.contains(&path[..*n])).count();
            seen.extend((1..=path.len()).map(|n| &path[..n]));
            (self.resolve_path(path), known)
        })
        .collect()
    }
}

impl fmt::Display for StateGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let depth = self.paths.last().map_or(0, Vec::len);
        let (states, tried, steps) = (self.state_count(), self.expanded_states, self.step_count);
        let whole = if self.is_complete() { "whole" } else { "in part" };
        write!(
            f,
            "{states} states, {tried} with all their steps, {steps} steps, {depth} deep: {whole}"
        )
    }
}

/// Tells the way to a state that is wrong.
struct PanicPathPrinter<'a>(&'a [ClientOperation], &'a [usize]);

impl Drop for PanicPathPrinter<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let way: Vec<_> = self.1.iter().map(|n| &self.0[*n]).collect();
            eprintln!("after {way:#?}");
        }
    }
}

/// Explores until there are so many states, or no more; each is checked.
pub(super) async fn explore_and_check(
    world: &ModelScenario,
    most: usize,
    planted: Option<PlantedFault>,
) -> StateGraph {
    explore_breadth_first(world, most, planted, true).await
}

/// The same, without the checks: they are another test's.
#[cfg(feature = "redis")]
pub(super) async fn explore_unchecked(world: &ModelScenario, most: usize) -> StateGraph {
    explore_breadth_first(world, most, None, false).await
}

async fn explore_breadth_first(
    world: &ModelScenario,
    most: usize,
    planted: Option<PlantedFault>,
    checked: bool,
) -> StateGraph {
    let moves = &world.operations;
    let all_of = |path: &[usize]| Vec::from_iter(path.iter().map(|n| moves[*n].clone()));
    let begin = ScenarioRun::replay(world, &[], planted).await.state_snapshot();
    let mut seen = HashSet::from([begin.clone()]);
    let mut todo = VecDeque::from([(OperationPath::new(), begin)]);
    let mut graph = StateGraph::new(moves);
    while let Some((path, picture)) = todo.pop_front() {
        if graph.state_count() >= most {
            break;
        }
        let (made, mut idle) = (all_of(&path), OperationPath::new());
        for n in 0..moves.len() {
            let next: OperationPath = path.iter().copied().chain([n]).collect();
            let _told = PanicPathPrinter(moves, &next);
            let mut way = ScenarioRun::replay(world, &made, planted).await;
            if !way.apply(&moves[n]).await {
                continue;
            }
            graph.step_count += 1;
            if checked {
                way.check_state().await;
            }
            let now = way.state_snapshot();
            if now == picture && !matches!(moves[n], ClientOperation::AdvanceTime(_)) {
                idle.push(n);
            }
            if seen.insert(now.clone()) {
                if checked {
                    way.drain_to_end(false).await;
                    ScenarioRun::replay(world, &all_of(&next), planted)
                        .await
                        .drain_to_end(true)
                        .await;
                }
                todo.push_back((next.clone(), now));
                graph.paths.push(next.clone());
            }
        }
        // Those are looked at in the order in which they were met.
        graph.idle_operations.push(idle);
        graph.expanded_states += 1;
    }
    graph
}
