
for (const digest of document.querySelectorAll("code.digest")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "copy";
  button.title = "Show and copy " + digest.title;
  button.addEventListener("click", () => {
    digest.textContent = digest.title;
    getSelection().selectAllChildren(digest);
    button.textContent = document.execCommand("copy") ? "copied" : "selected";
  });
  digest.after(" ", button);
}
