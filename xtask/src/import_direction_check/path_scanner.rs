//! Scanner for paths in Rust source text. It skips comments and strings, and expands groups.

/// Path in the source, as far as it can be resolved without compiling.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PathReference {
    pub(super) line: usize,
    /// Number of inline modules that enclose the path.
    inline_depth: usize,
    pub(super) segments: Vec<String>,
    pub(super) alias: Option<String>,
}

impl PathReference {
    /// Returns the first name below the crate root in this path, resolved from `module`.
    pub(super) fn target_module(&self, module: &[String]) -> Option<String> {
        let (first, tail) = self.segments.split_first()?;
        if first == "crate" {
            return tail.first().cloned();
        }
        let ups = self.segments.iter().take_while(|segment| *segment == "super").count();
        let ups = ups.checked_sub(self.inline_depth)?;
        if ups == 0 {
            return None;
        }
        let base = module.len().checked_sub(ups)?;
        match module[..base].first() {
            Some(top_module) => Some(top_module.clone()),
            None => self.segments.iter().find(|segment| *segment != "super").cloned(),
        }
    }
}

/// Returns every path that starts at `crate`, `super` or `self`, with groups expanded.
pub(super) fn find_paths(text: &str) -> Vec<PathReference> {
    let tokens = tokenize(&blank_comments_and_strings(text));
    let mut found = Vec::new();
    let mut braces = 0;
    let mut inline_modules: Vec<usize> = Vec::new();
    let mut index = 0;
    while index < tokens.len() {
        let next = tokens.get(index + 1).map(|token| token.text.as_str());
        match tokens[index].text.as_str() {
            "crate" | "super" | "self" if next == Some("::") => {
                index = scan_path_tree(&tokens, index, &[], inline_modules.len(), &mut found);
                continue;
            }
            "mod" if tokens.get(index + 2).is_some_and(|token| token.text == "{") => {
                inline_modules.push(braces);
                index += 1;
            }
            "{" => braces += 1,
            "}" => {
                braces = braces.saturating_sub(1);
                if inline_modules.last() == Some(&braces) {
                    inline_modules.pop();
                }
            }
            _ => {}
        }
        index += 1;
    }
    found
}

/// Reads one path or one branch of a group and returns the position of its end.
fn scan_path_tree(
    tokens: &[LineToken],
    start: usize,
    prefix: &[String],
    inline_depth: usize,
    found: &mut Vec<PathReference>,
) -> usize {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let mut segments = prefix.to_vec();
    let mut at = start;
    loop {
        if text(at) == "{" {
            at += 1;
            while !matches!(text(at), "}" | "") {
                at = scan_path_tree(tokens, at, &segments, inline_depth, found);
                if text(at) == "," {
                    at += 1;
                } else if text(at) != "}" {
                    return at;
                }
            }
            return at + 1;
        }
        // `use a::{self}` is a path to `a`.
        if text(at) != "self" || segments.is_empty() {
            segments.push(text(at).to_owned());
        }
        let line = tokens.get(at).map_or(0, |token| token.line);
        at += 1;
        let next = text(at + 1);
        if text(at) == "::" && (next == "{" || next == "*" || is_identifier(next)) {
            at += 1;
            continue;
        }
        let alias = (text(at) == "as").then(|| text(at + 1).to_owned());
        at += if alias.is_some() { 2 } else { 0 };
        found.push(PathReference { line, inline_depth, segments, alias });
        return at;
    }
}

/// Identifier or punctuation mark.
struct LineToken {
    line: usize,
    text: String,
}

fn tokenize(code: &str) -> Vec<LineToken> {
    let mut tokens: Vec<LineToken> = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let mut unread = line;
        while let Some(first) = unread.chars().next() {
            let length = if is_identifier_char(first) {
                unread.find(|c| !is_identifier_char(c)).unwrap_or(unread.len())
            } else if unread.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            let (token, after) = unread.split_at(length);
            if !token.trim().is_empty() {
                tokens.push(LineToken { line: index + 1, text: token.to_owned() });
            }
            unread = after;
        }
    }
    tokens
}

fn is_identifier(token: &str) -> bool {
    token.chars().next().is_some_and(is_identifier_char)
}

fn is_identifier_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Blanks comments and the contents of string and character literals; lines keep their numbers.
pub(super) fn blank_comments_and_strings(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut unread = text;
    while let Some(first) = unread.chars().next() {
        let blank_length =
            comment_length(unread).or_else(|| literal_length(unread, code.chars().next_back()));
        let length = blank_length.unwrap_or(first.len_utf8());
        let (part, after) = unread.split_at(length);
        if blank_length.is_some() {
            code.extend(part.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        } else {
            code.push_str(part);
        }
        unread = after;
    }
    code
}

/// Length of the comment at the start of the text.
fn comment_length(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if !text.starts_with("/*") {
        return None;
    }
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let step = match &text.as_bytes()[at..] {
            [b'/', b'*', ..] => {
                depth += 1;
                2
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                2
            }
            _ => 1,
        };
        at += step;
        if depth == 0 {
            return Some(at);
        }
    }
    Some(text.len())
}

/// Length of the string or character literal at the start of the text. A lifetime is neither.
fn literal_length(text: &str, previous: Option<char>) -> Option<usize> {
    let in_identifier = previous.is_some_and(is_identifier_char);
    if let Some(raw) = text.strip_prefix('r').filter(|_| !in_identifier || previous == Some('b')) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let close = format!("\"{}", "#".repeat(hashes));
            let start = hashes + 2;
            let end = text[start..].find(&close).map_or(text.len(), |at| start + at + close.len());
            return Some(end);
        }
    }
    let quote = text.chars().next().filter(|first| matches!(first, '"' | '\''))?;
    let mut inner = text.char_indices().skip(1);
    if quote == '\'' {
        let (_, first) = inner.next()?;
        let (at, second) = inner.next()?;
        if first != '\\' {
            return (second == '\'').then_some(at + 1);
        }
    }
    let mut escaped = false;
    for (at, c) in inner {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    Some(text.len())
}
