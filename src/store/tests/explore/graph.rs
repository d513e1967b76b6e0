//! Breadth first.

use std::{
    collections::{HashSet, VecDeque},
    fmt,
};

use super::{Move, Way, alphabet};
use crate::store::memory::Planted;

/// The moves that lead to a state first, as indexes into the alphabet.
type Path = Vec<usize>;

/// What has been explored.
pub(super) struct Graph {
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
        let moves = alphabet();
        let leaves = self.paths.iter().filter(|path| !inner.contains(path.as_slice()));
        leaves.map(|path| path.iter().map(|n| moves[*n].clone()).collect()).collect()
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let depth = self.paths.last().map_or(0, Vec::len);
        let (states, tried, steps) = (self.states(), self.tried, self.steps);
        write!(f, "{states} states, {tried} with all their steps, {steps} steps, {depth} deep")
    }
}

/// Tells the way to a state that is wrong.
struct Told<'a>(&'a [usize]);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let moves = alphabet();
            let way: Vec<_> = self.0.iter().map(|n| &moves[*n]).collect();
            eprintln!("after {way:#?}");
        }
    }
}

/// Explores until there are so many states, or no more; each is checked.
pub(super) async fn explore(most: usize, planted: Option<Planted>) -> Graph {
    let moves = alphabet();
    let all_of = |path: &[usize]| Vec::from_iter(path.iter().map(|n| moves[*n].clone()));
    let begin = Way::along(&[], planted).await;
    let mut seen = HashSet::from([begin.picture()]);
    let mut todo = VecDeque::from([Path::new()]);
    let mut graph = Graph { paths: vec![Path::new()], tried: 0, steps: 0 };
    while let Some(path) = todo.pop_front() {
        if graph.states() >= most {
            break;
        }
        let made = all_of(&path);
        for n in 0..moves.len() {
            let next: Path = path.iter().copied().chain([n]).collect();
            let _told = Told(&next);
            let mut way = Way::along(&made, planted).await;
            if !way.go(&moves[n]).await {
                continue;
            }
            graph.steps += 1;
            way.is_sound().await;
            if seen.insert(way.picture()) {
                way.ends(false).await;
                Way::along(&all_of(&next), planted).await.ends(true).await;
                todo.push_back(next.clone());
                graph.paths.push(next.clone());
            }
        }
        graph.tried += 1;
    }
    graph
}
