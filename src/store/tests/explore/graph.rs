//! Breadth first.

use std::{
    collections::{HashSet, VecDeque},
    fmt,
};

use super::{Move, Way, World};
use crate::store::memory::PlantedFault;

/// The moves that lead to a state first, as indexes into the alphabet.
type Path = Vec<usize>;

/// What has been explored.
pub(super) struct Graph {
    moves: Vec<Move>,
    paths: Vec<Path>,
    /// Of each state, the moves that leave it is; they let no time pass.
    idle: Vec<Path>,
    /// States of which all steps were tried.
    tried: usize,
    steps: usize,
}

impl Graph {
    /// The beginning alone.
    fn new(moves: &[Move]) -> Self {
        let (moves, paths) = (moves.to_vec(), vec![Path::new()]);
        Self { moves, paths, idle: Vec::new(), tried: 0, steps: 0 }
    }

    pub(super) fn states(&self) -> usize {
        self.paths.len()
    }

    /// There is nothing else to be reached.
    pub(super) fn whole(&self) -> bool {
        self.tried == self.paths.len()
    }

    /// The ways to all that some moves leave as they are, and these.
    #[cfg(feature = "redis")]
    pub(super) fn idle(&self) -> Vec<(Vec<Move>, Vec<Move>)> {
        let both = self.paths.iter().zip(&self.idle).filter(|(_, idle)| !idle.is_empty());
        both.map(|(path, idle)| (self.made(path), self.made(idle))).collect()
    }

    #[cfg(feature = "redis")]
    fn made(&self, path: &[usize]) -> Vec<Move> {
        path.iter().map(|n| self.moves[*n].clone()).collect()
    }

    /// About so many of the ways to states that lead to no new one; of each, how many of its first states are on a way
    /// before it.
    #[cfg(feature = "redis")]
    pub(super) fn leaves(&self, most: usize) -> Vec<(Vec<Move>, usize)> {
        let inner: HashSet<&[usize]> =
            self.paths.iter().filter_map(|path| Some(path.split_last()?.1)).collect();
        let leaves = self.paths.iter().filter(|path| !inner.contains(path.as_slice()));
        let leaves: Vec<_> = leaves.collect();
        let mut seen = HashSet::new();
        let some = leaves.iter().step_by((leaves.len() / most).max(1));
        some.map(|path| {
            let known = (1..=path.len()).take_while(|n| seen.contains(&path[..*n])).count();
            seen.extend((1..=path.len()).map(|n| &path[..n]));
            (self.made(path), known)
        })
        .collect()
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let depth = self.paths.last().map_or(0, Vec::len);
        let (states, tried, steps) = (self.states(), self.tried, self.steps);
        let whole = if self.whole() { "whole" } else { "in part" };
        write!(
            f,
            "{states} states, {tried} with all their steps, {steps} steps, {depth} deep: {whole}"
        )
    }
}

/// Tells the way to a state that is wrong.
struct Told<'a>(&'a [Move], &'a [usize]);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let way: Vec<_> = self.1.iter().map(|n| &self.0[*n]).collect();
            eprintln!("after {way:#?}");
        }
    }
}

/// Explores until there are so many states, or no more; each is checked.
pub(super) async fn explore(world: &World, most: usize, planted: Option<PlantedFault>) -> Graph {
    go(world, most, planted, true).await
}

/// The same, without the checks: they are another test's.
#[cfg(feature = "redis")]
pub(super) async fn map(world: &World, most: usize) -> Graph {
    go(world, most, None, false).await
}

async fn go(world: &World, most: usize, planted: Option<PlantedFault>, checked: bool) -> Graph {
    let moves = &world.moves;
    let all_of = |path: &[usize]| Vec::from_iter(path.iter().map(|n| moves[*n].clone()));
    let begin = Way::along(world, &[], planted).await.picture();
    let mut seen = HashSet::from([begin.clone()]);
    let mut todo = VecDeque::from([(Path::new(), begin)]);
    let mut graph = Graph::new(moves);
    while let Some((path, picture)) = todo.pop_front() {
        if graph.states() >= most {
            break;
        }
        let (made, mut idle) = (all_of(&path), Path::new());
        for n in 0..moves.len() {
            let next: Path = path.iter().copied().chain([n]).collect();
            let _told = Told(moves, &next);
            let mut way = Way::along(world, &made, planted).await;
            if !way.go(&moves[n]).await {
                continue;
            }
            graph.steps += 1;
            if checked {
                way.is_sound().await;
            }
            let now = way.picture();
            if now == picture && !matches!(moves[n], Move::Pass(_)) {
                idle.push(n);
            }
            if seen.insert(now.clone()) {
                if checked {
                    way.ends(false).await;
                    Way::along(world, &all_of(&next), planted).await.ends(true).await;
                }
                todo.push_back((next.clone(), now));
                graph.paths.push(next.clone());
            }
        }
        // Those are looked at in the order in which they were met.
        graph.idle.push(idle);
        graph.tried += 1;
    }
    graph
}
