//! What is done to the processes and to their server.

use crate::history::dice::Dice;

#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    Kill,
    Stop,
    CutCalls,
    ForgetScripts,
    Freeze,
    Restart,
    Stall,
    HalfOpen,
    Delay,
    LoseReply,
}

impl Fault {
    const ALL: [Self; 10] = [
        Self::Kill,
        Self::Stop,
        Self::CutCalls,
        Self::ForgetScripts,
        Self::Freeze,
        Self::Restart,
        Self::Stall,
        Self::HalfOpen,
        Self::Delay,
        Self::LoseReply,
    ];

    pub(super) fn draw(dice: &mut Dice) -> Self {
        Self::ALL[usize::try_from(dice.below(10)).unwrap_or(0)]
    }
}
