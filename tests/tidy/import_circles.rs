//! Import circles between siblings: modules of one parent, each with its children.
//!
//! A module and its children are one noun, so they may import each other. A name that a file
//! imports by a re-export counts as an import of the module that declares it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Item, UseTree};

use super::sources::{ModulePath, SourceFile};

/// One sibling imports another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Import {
    /// The module that both are in; empty for the crate.
    pub parent: ModulePath,
    pub importer: String,
    pub imported: String,
}

impl Display for Import {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let parent =
            if self.parent.is_empty() { "crate".to_owned() } else { self.parent.join("::") };
        write!(f, "{parent}: {} -> {}", self.importer, self.imported)
    }
}

/// All imports that are part of a circle, each with a place in the code.
pub(super) fn circular_imports(files: &[SourceFile]) -> BTreeMap<Import, String> {
    let imports = imports_of_siblings(files);
    let mut siblings: BTreeMap<(&ModulePath, &str), BTreeSet<&str>> = BTreeMap::new();
    for import in imports.keys() {
        let imported = siblings.entry((&import.parent, &import.importer)).or_default();
        imported.insert(&import.imported);
    }
    let reaches = |import: &Import| {
        let mut seen = BTreeSet::new();
        let mut next = vec![import.imported.as_str()];
        while let Some(module) = next.pop() {
            if seen.insert(module)
                && let Some(imported) = siblings.get(&(&import.parent, module))
            {
                next.extend(imported);
            }
        }
        seen.contains(import.importer.as_str())
    };
    imports
        .iter()
        .filter(|(import, _)| reaches(import))
        .map(|(i, p)| (i.clone(), p.clone()))
        .collect()
}

fn imports_of_siblings(files: &[SourceFile]) -> BTreeMap<Import, String> {
    let modules = Modules::new(files);
    let mut imports = BTreeMap::new();
    for (path, module) in &modules.0 {
        for reference in &module.references {
            let Some(target) = modules.resolve(path, &reference.path, 0) else { continue };
            let shared = path.iter().zip(&target).take_while(|(a, b)| a == b).count();
            if shared == path.len() || shared == target.len() {
                continue;
            }
            let import = Import {
                parent: path[..shared].to_vec(),
                importer: path[shared].clone(),
                imported: target[shared].clone(),
            };
            let place = format!("{}:{}", module.file, reference.line);
            imports.entry(import).or_insert(place);
        }
    }
    imports
}

/// A path in the code, as it is written.
struct Reference {
    path: Vec<String>,
    line: usize,
}

/// The names of a module.
#[derive(Default)]
struct Module {
    /// Below `src/`.
    file: String,
    /// The names that it declares itself.
    items: BTreeSet<String>,
    /// Its imports, by their local names.
    imports: BTreeMap<String, Vec<String>>,
    /// The modules from which it imports all names.
    globs: Vec<Vec<String>>,
    references: Vec<Reference>,
}

struct Modules(BTreeMap<ModulePath, Module>);

impl Modules {
    fn new(files: &[SourceFile]) -> Self {
        let mut modules = BTreeMap::new();
        for file in files {
            let mut collector =
                Collector { file: &file.path, module: file.module.clone(), modules: &mut modules };
            collector.collect(&file.syntax.items);
        }
        Self(modules)
    }

    /// The module that declares the item to which `path` refers in the module `from`; `None` for
    /// items of other crates.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<ModulePath> {
        let mut module = from.to_vec();
        let mut names = path;
        while let [first, rest @ ..] = names
            && matches!(first.as_str(), "crate" | "self" | "super")
        {
            match first.as_str() {
                "crate" => module.clear(),
                "super" => drop(module.pop()),
                _ => {}
            }
            names = rest;
        }
        let is_local = names.len() < path.len();
        for (index, name) in names.iter().enumerate() {
            let child = [&module[..], std::slice::from_ref(name)].concat();
            if self.0.contains_key(&child) {
                module = child;
                continue;
            }
            return match self.declaring(&module, name, depth) {
                Declared::Here => Some(module),
                Declared::By(mut target) => {
                    target.extend_from_slice(&names[index + 1..]);
                    self.resolve(&module, &target, depth + 1)
                }
                Declared::Nowhere => (is_local || index > 0).then_some(module),
            };
        }
        Some(module)
    }

    fn declaring(&self, module: &[String], name: &str, depth: usize) -> Declared {
        let Some(names) = self.0.get(module) else { return Declared::Nowhere };
        if names.items.contains(name) {
            return Declared::Here;
        }
        // A re-export of re-exports ends; imports by glob may be circles.
        if depth > 10 {
            return Declared::Nowhere;
        }
        if let Some(target) = names.imports.get(name) {
            return Declared::By(target.clone());
        }
        for glob in &names.globs {
            let Some(from) = self.resolve(module, glob, depth + 1) else { continue };
            if !matches!(self.declaring(&from, name, depth + 1), Declared::Nowhere) {
                return Declared::By([&glob[..], &[name.to_owned()]].concat());
            }
        }
        Declared::Nowhere
    }
}

/// The origin of a name in a module.
enum Declared {
    Here,
    By(Vec<String>),
    Nowhere,
}

/// Collects the names and the references of a file's modules.
struct Collector<'a> {
    file: &'a str,
    module: ModulePath,
    modules: &'a mut BTreeMap<ModulePath, Module>,
}

impl Collector<'_> {
    fn collect(&mut self, items: &[Item]) {
        let file = self.file.to_owned();
        let module = self.modules.entry(self.module.clone()).or_default();
        module.file = file;
        module.items.extend(items.iter().filter_map(name));
        items.iter().for_each(|item| self.visit_item(item));
    }

    fn own(&mut self) -> &mut Module {
        self.modules.get_mut(&self.module).expect("its file is collected")
    }

    fn refer(&mut self, path: Vec<String>, line: usize) {
        // One name is declared in the file itself, or imported by a `use` that counts.
        if path.len() > 1 {
            self.own().references.push(Reference { path, line });
        }
    }

    fn import(&mut self, tree: &UseTree, mut path: Vec<String>) {
        match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.import(&tree.tree, path);
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(tree, path.clone()));
            }
            UseTree::Glob(glob) => {
                let line = glob.star_token.span.start().line;
                self.own().globs.push(path.clone());
                self.refer(path, line);
            }
            UseTree::Name(name) => self.import_name(path, &name.ident, &name.ident),
            UseTree::Rename(rename) => self.import_name(path, &rename.ident, &rename.rename),
        }
    }

    fn import_name(&mut self, mut path: Vec<String>, name: &Ident, here: &Ident) {
        if name != "self" {
            path.push(name.to_string());
        }
        let here = if here == "self" { path.last().cloned() } else { Some(here.to_string()) };
        self.own().imports.insert(here.expect("self is in braces"), path.clone());
        self.refer(path, name.span().start().line);
    }

    /// The arguments of macros are tokens: paths are names with `::` between them.
    fn visit_tokens(&mut self, tokens: TokenStream) {
        let mut path = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) if colons == 2 || path.is_empty() => {
                    path.push(name.to_string());
                    colons = 0;
                    continue;
                }
                TokenTree::Ident(name) => {
                    let line = name.span().start().line;
                    self.refer(std::mem::replace(&mut path, vec![name.to_string()]), line);
                    colons = 0;
                    continue;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => {
                    colons += 1;
                    continue;
                }
                other => {
                    let line = other.span().start().line;
                    self.refer(std::mem::take(&mut path), line);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.visit_tokens(group.stream());
                    }
                }
            }
        }
        self.refer(path, 0);
    }
}

impl<'ast> Visit<'ast> for Collector<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let Some((_, items)) = &item.content else { return };
        self.module.push(item.ident.to_string());
        self.collect(items);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.import(&item.tree, Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.refer(names, path.segments[0].ident.span().start().line);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        visit::visit_macro(self, item);
        self.visit_tokens(item.tokens.clone());
    }
}

fn name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::sources::parse;
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        let files = parse(&files.iter().map(own).collect::<Vec<_>>());
        circular_imports(&files).keys().map(Import::to_string).collect()
    }

    #[test]
    fn siblings_that_import_each_other_are_found() {
        let found = circles(&[
            ("lib.rs", "mod fs; mod read;"),
            ("read.rs", "pub struct Reader;"),
            ("fs.rs", "mod a; mod b; mod c; use b::B; pub struct Fs(crate::read::Reader);"),
            // By way of the parent's import, and in the arguments of a macro.
            ("fs/a.rs", "use super::{B, Fs}; pub struct A;"),
            ("fs/b.rs", "mod d; pub struct B; fn f() { assert!(super::c::is_c()); }"),
            ("fs/b/d.rs", "use super::super::Fs; use super::B;"),
            ("fs/c.rs", "pub fn is_c() -> bool { g(crate::fs::a::A) }"),
        ]);
        assert_eq!(found, ["fs: a -> b", "fs: b -> c", "fs: c -> a"]);
    }

    #[test]
    fn imports_of_tests_form_no_circle() {
        let found = circles(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B; pub struct A; #[cfg(test)] mod tests;"),
            ("a/tests.rs", "use crate::b::B;"),
            ("b.rs", "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn rooms_that_import_each_other_are_found() {
        let found = circles(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "pub use inner::A; mod inner;"),
            ("a/inner.rs", "pub struct A(pub crate::b::B);"),
            ("b.rs", "pub struct B; fn f(_: crate::a::A) {}"),
        ]);
        assert_eq!(found, ["crate: a -> b", "crate: b -> a"]);
    }
}
