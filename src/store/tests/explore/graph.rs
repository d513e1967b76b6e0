//! Breadth first.

use std::{
    collections::{HashSet, VecDeque},
    fmt,
};

use super::{Move, Way, World};
use crate::store::memory::Planted;

/// The moves that lead to a state first, as indexes into the alphabet.
type Path = Vec<usize>;

/// What has been explored.
pub(super) struct Graph {
    moves: Vec<Move>,
    paths: Vec<Path>,
    /// States of which all steps were tried.
    tried: usize,
    steps: usize,
}

impl Graph {
    pub(super) fn states(&self) -> usize {
        self.paths.len()
    }

    /// There is nothing else to be reached.
    pub(super) fn whole(&self) -> bool {
        self.tried == self.paths.len()
    }

    /// The ways to those that lead to no new one.
    #[cfg(feature = "redis")]
    pub(super) fn leaves(&self) -> Vec<Vec<Move>> {
        let inner: HashSet<&[usize]> =
            self.paths.iter().filter_map(|path| Some(path.split_last()?.1)).collect();
        let moves = &self.moves;
        let leaves = self.paths.iter().filter(|path| !inner.contains(path.as_slice()));
        leaves.map(|path| path.iter().map(|n| moves[*n].clone()).collect()).collect()
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
pub(super) async fn explore(world: &World, most: usize, planted: Option<Planted>) -> Graph {
    go(world, most, planted, true).await
}

/// The same, without the checks: they are another test's.
#[cfg(feature = "redis")]
pub(super) async fn map(world: &World, most: usize) -> Graph {
    go(world, most, None, false).await
}

async fn go(world: &World, most: usize, planted: Option<Planted>, checked: bool) -> Graph {
    let moves = &world.moves;
    let all_of = |path: &[usize]| Vec::from_iter(path.iter().map(|n| moves[*n].clone()));
    let begin = Way::along(world, &[], planted).await;
    let mut seen = HashSet::from([begin.picture()]);
    let mut todo = VecDeque::from([Path::new()]);
    let mut graph = Graph { moves: moves.clone(), paths: vec![Path::new()], tried: 0, steps: 0 };
    while let Some(path) = todo.pop_front() {
        if graph.states() >= most {
            break;
        }
        let made = all_of(&path);
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
            if seen.insert(way.picture()) {
                if checked {
                    way.ends(false).await;
                    Way::along(world, &all_of(&next), planted).await.ends(true).await;
                }
                todo.push_back(next.clone());
                graph.paths.push(next.clone());
            }
        }
        graph.tried += 1;
    }
    graph
}
