//! The limits on the size and the shape of functions, and on types of errors.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use proc_macro2::Span;
use syn::visit::{self, Visit};
use syn::{Block, Expr, FnArg, GenericArgument, Pat, PathArguments, Signature, Type};

use super::sources::SourceFile;

/// From the line with `fn` to the closing brace.
const MAX_LINES: usize = 60;

/// Besides self.
const MAX_PARAMETERS: usize = 5;

/// A rule on functions or types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Limit {
    /// A function has at most 60 lines.
    Lines,
    /// A function has at most five parameters besides self, unless a foreign trait
    /// declares them.
    Parameters,
    /// `fn f((a, b): (A, B))`
    TupleParameter,
    /// `let (a, b) = (x, y);`
    TupleLet,
    /// `Result<_, String>`
    StringError,
}

impl Display for Limit {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Lines => "function-over-60-lines",
            Limit::Parameters => "function-over-5-parameters",
            Limit::TupleParameter => "tuple-parameter",
            Limit::TupleLet => "tuple-let",
            Limit::StringError => "string-error",
        })
    }
}

/// A place in the code that breaks a rule.
pub(super) struct Violation {
    pub limit: Limit,
    /// Below `src/`.
    pub file: String,
    pub line: usize,
    /// The code at that place.
    pub what: String,
}

/// Everything in `files` that breaks a rule.
pub(super) fn violations(files: &[SourceFile]) -> Vec<Violation> {
    let mut own_traits = OwnTraits(BTreeSet::new());
    files.iter().for_each(|file| own_traits.visit_file(&file.syntax));
    let mut found = Vec::new();
    for file in files {
        let mut finder = Finder {
            file: &file.path,
            own_traits: &own_traits.0,
            implements_foreign_trait: false,
            found: &mut found,
        };
        finder.visit_file(&file.syntax);
    }
    found
}

/// The traits that are declared in the sources.
struct OwnTraits(BTreeSet<String>);

impl<'ast> Visit<'ast> for OwnTraits {
    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.0.insert(item.ident.to_string());
    }
}

struct Finder<'a> {
    file: &'a str,
    own_traits: &'a BTreeSet<String>,
    implements_foreign_trait: bool,
    found: &'a mut Vec<Violation>,
}

impl Finder<'_> {
    fn add(&mut self, limit: Limit, at: Span, what: String) {
        let (file, line) = (self.file.to_owned(), at.start().line);
        self.found.push(Violation { limit, file, line, what });
    }

    fn check_function(&mut self, signature: &Signature, body: Option<&Block>) {
        let name = &signature.ident;
        let lines = body.map_or(0, |body| {
            body.brace_token.span.close().end().line - signature.fn_token.span.start().line + 1
        });
        if lines > MAX_LINES {
            self.add(Limit::Lines, name.span(), format!("fn {name} has {lines} lines"));
        }
        let typed = signature.inputs.iter().filter_map(|input| match input {
            FnArg::Receiver(_) => None,
            FnArg::Typed(typed) => Some(typed),
        });
        let parameters = typed.clone().count();
        if parameters > MAX_PARAMETERS && !self.implements_foreign_trait {
            let what = format!("fn {name} has {parameters} parameters");
            self.add(Limit::Parameters, name.span(), what);
        }
        for parameter in typed.filter(|typed| is_tuple(&typed.pat)) {
            self.add(Limit::TupleParameter, parameter.colon_token.spans[0], format!("fn {name}"));
        }
    }
}

fn is_tuple(pattern: &Pat) -> bool {
    match pattern {
        Pat::Tuple(tuple) => tuple.elems.len() > 1,
        Pat::Reference(reference) => is_tuple(&reference.pat),
        Pat::Paren(paren) => is_tuple(&paren.pat),
        Pat::Type(typed) => is_tuple(&typed.pat),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let name = item.trait_.as_ref().and_then(|(path, _)| path.segments.last());
        self.implements_foreign_trait =
            name.is_some_and(|name| !self.own_traits.contains(&name.ident.to_string()));
        visit::visit_item_impl(self, item);
        self.implements_foreign_trait = false;
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.check_function(&function.sig, Some(&function.block));
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.check_function(&function.sig, Some(&function.block));
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        self.check_function(&function.sig, function.default.as_ref());
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        // With `else` it is a match on several values at once.
        let init = local.init.as_ref().filter(|init| init.diverge.is_none());
        let is_several = init.is_some_and(|init| matches!(&*init.expr, Expr::Tuple(_)));
        if is_several && is_tuple(&local.pat) {
            self.add(Limit::TupleLet, local.let_token.span, "let of several values".to_owned());
        }
        visit::visit_local(self, local);
    }

    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        if let PathArguments::AngleBracketed(arguments) = &segment.arguments
            && segment.ident == "Result"
            && let Some(GenericArgument::Type(Type::Path(error))) = arguments.args.iter().nth(1)
            && error.path.segments.last().is_some_and(|last| last.ident == "String")
        {
            self.add(Limit::StringError, segment.ident.span(), "Result<_, String>".to_owned());
        }
        visit::visit_path_segment(self, segment);
    }
}

#[cfg(test)]
mod tests {
    use super::super::sources::parse;
    use super::*;

    fn found(text: &str) -> Vec<Limit> {
        let files = parse(&[("a.rs".to_owned(), text.to_owned())]);
        violations(&files).into_iter().map(|violation| violation.limit).collect()
    }

    #[test]
    fn long_functions_are_found() {
        let function = |lines: usize| format!("fn f() {{\n{}}}", "g();\n".repeat(lines - 2));
        assert_eq!(found(&function(MAX_LINES)), []);
        assert_eq!(found(&function(MAX_LINES + 1)), [Limit::Lines]);
        let method = format!("impl A {{ {} }}", function(MAX_LINES + 1));
        assert_eq!(found(&method), [Limit::Lines]);
        assert_eq!(found(&format!("#[cfg(test)] mod tests {{ {method} }}")), []);
    }

    #[test]
    fn functions_with_many_parameters_are_found() {
        let six = "fn f(&self, a: u8, b: u8, c: u8, d: u8, e: u8, f: u8) {}";
        assert_eq!(found("impl A { fn f(&self, a: u8, b: u8, c: u8, d: u8, e: u8) {} }"), []);
        assert_eq!(found(&format!("impl A {{ {six} }}")), [Limit::Parameters]);
        assert_eq!(found(&format!("impl fuser::Filesystem for A {{ {six} }}")), []);
        let own = format!("trait Own {{ {six} }} impl Own for A {{ {six} }}");
        assert_eq!(found(&own), [Limit::Parameters; 2]);
    }

    #[test]
    fn tuples_of_several_values_are_found() {
        assert_eq!(found("fn f((a, b): (u8, u8)) {}"), [Limit::TupleParameter]);
        assert_eq!(found("fn f(&(a, b): &(u8, u8)) {}"), [Limit::TupleParameter]);
        assert_eq!(found("fn f() { g(|(a, b)| a + b); }"), []);
        assert_eq!(found("fn f() { let (a, b) = (1, 2); }"), [Limit::TupleLet]);
        assert_eq!(found("fn f() { let (a, b): (u8, u8) = (1, 2); }"), [Limit::TupleLet]);
        assert_eq!(found("fn f() { let (a, b) = g(); }"), []);
        assert_eq!(found("fn f() { let (Some(a), None) = (g(), h()) else { return }; }"), []);
    }

    #[test]
    fn text_errors_are_found() {
        assert_eq!(found("fn f() -> Result<(), String> { g() }"), [Limit::StringError]);
        assert_eq!(found("type R = std::result::Result<u8, String>;"), [Limit::StringError]);
        assert_eq!(found("fn f() -> Result<String, Error> { g() }"), []);
    }
}
